"""The guarantees of the reconciler's loop, with a clock moved by hand and a kernel in memory."""

import asyncio
from collections.abc import Callable
from ipaddress import ip_network

import msgspec
from tests.fakes.clock import FakeClock
from tests.unit.routing.router_lab import Lab, MemoryMachine, node

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeSpec
from podwire.routing.nodes import RoutingFacts
from podwire.routing.plan import Plan
from podwire.routing.router import CHECK_S, QUIET_S, RESYNC_S, Router
from podwire.routing.settings import RoutingSettings


def test_a_burst_of_changes_is_one_run() -> None:
    async def body() -> None:
        async with Lab() as lab:
            assert lab.runs == 1
            for number in range(3, 9):
                lab.nodes[f"node-{number}"] = node(number)
                lab.router.node_changed("", None, node(number))
            await lab.clock.advance(4 * QUIET_S)
            assert lab.runs == 2
            assert len([r for r in lab.machine.states[-1].routes if r.via]) == 7

    asyncio.run(body())


def test_router_is_settled_only_after_the_run_following_a_change() -> None:
    async def body() -> None:
        async with Lab() as lab:
            assert lab.router.settled
            lab.nodes["node-3"] = node(3)
            lab.router.node_changed("node-3", None, node(3))
            assert not lab.router.settled
            await lab.clock.advance(4 * QUIET_S)
            assert lab.router.settled
            lab.machine.failures = ["no"]
            lab.router.disturbed()
            await lab.clock.advance(4 * QUIET_S)
            assert not lab.router.settled

    asyncio.run(body())


def test_after_a_slow_run_the_next_is_later() -> None:
    async def body() -> None:
        async with Lab() as lab:
            lab.machine.take_time = lambda: lab.clock.spend(0.1)
            lab.router.disturbed()
            await lab.clock.advance(0.2)
            lab.router.disturbed()
            await lab.clock.advance(0.7)
            assert lab.runs == 2
            await lab.clock.advance(0.3)
            assert lab.runs == 3
            lab.machine.take_time = lambda: lab.clock.spend(60)
            await lab.clock.advance(3)
            lab.router.disturbed()
            await lab.clock.advance(0)
            lab.router.disturbed()
            await lab.clock.advance(1.9)
            assert lab.runs == 4
            await lab.clock.advance(0.2)
            assert lab.runs == 5

    asyncio.run(body())


def test_change_is_compared_with_the_peer_of_the_last_run() -> None:
    async def body() -> None:
        async with Lab() as lab:
            before, reported = lab.nodes["node-2"], node(2, {"kubelet": "beats"})
            lab.nodes["node-2"] = reported
            lab.router.node_changed("node-2", before, reported)
            await lab.clock.advance(1)
            moved = node(7)
            lab.nodes["node-2"] = moved
            lab.router.node_changed("node-2", reported, moved)
            await lab.clock.advance(1)
            assert lab.runs == 2
            assert [r.dst for r in lab.machine.states[-1].routes if r.via] == ["10.244.7.0/24"]
            del lab.nodes["node-2"]
            lab.router.node_changed("node-2", moved, None)
            await lab.clock.advance(1)
            assert [r.dst for r in lab.machine.states[-1].routes if r.via] == []

    asyncio.run(body())


def test_an_announcement_that_changes_nothing_does_not_ask_the_kernel() -> None:
    async def body() -> None:
        async with Lab() as lab:
            assert lab.router.plan is not None
            reported = node(2, lab.router.plan.facts.annotations())
            before, lab.nodes["node-2"] = lab.nodes["node-2"], reported
            facts = lab.router.plan.facts
            lab.nodes["node-2"] = reported = node(2, RoutingFacts(facts.backend, facts.receives).annotations())
            lab.router.node_changed("node-2", before, reported)
            await lab.clock.advance(1)
            assert (lab.router.applied.runs, lab.runs) == (2, 1)
            lab.router.disturbed()
            await lab.clock.advance(1)
            assert (lab.router.applied.runs, lab.runs) == (3, 2)

    asyncio.run(body())


def test_a_resync_without_news_keeps_the_plan_and_compares_it() -> None:
    async def body() -> None:
        async with Lab() as lab:
            before, runs = lab.router.plan, lab.runs
            lab.router.disturbed()
            await lab.clock.advance(1)
            assert lab.router.plan is before and lab.runs == runs + 1
            changes: tuple[Callable[[], object], ...] = (
                lambda: lab.nodes.update({"node-3": node(3)}),
                lambda: lab.router.configure(RoutingSettings(mtu=1400)),
                lambda: lab.machine.without.add("geneve"),
                lambda: lab.router.take_objects("vxlan", "one"),
                lambda: setattr(lab.router, "cidrs", (ip_network("10.244.0.0/16"),)),
            )
            for change in changes:
                before = lab.router.plan
                change()
                lab.router.disturbed()
                await lab.clock.advance(3)
                assert lab.router.plan is not before

    asyncio.run(body())


def test_new_peer_is_a_plan_difference_disturbance_compares_all() -> None:
    async def body() -> None:
        async with Lab() as lab:

            async def comes(number: int) -> None:
                lab.nodes[f"node-{number}"] = node(number)
                lab.router.node_changed(f"node-{number}", None, node(number))
                await lab.clock.advance(1)

            await comes(3)
            assert (lab.runs, lab.machine.followed) == (2, 1)
            lab.router.disturbed()
            await comes(4)
            assert (lab.runs, lab.machine.followed) == (3, 1)
            await comes(5)
            assert (lab.runs, lab.machine.followed) == (4, 2)
            lab.machine.failures = ["no"]
            await comes(6)
            assert lab.machine.followed == 3
            assert lab.runs > 5, "what failed is tried again"
            lab.machine.failures = []
            await lab.clock.advance(20)
            assert lab.machine.followed == 3
            assert lab.router.problem == ""

    asyncio.run(body())


def test_heartbeats_cause_no_run() -> None:
    async def body() -> None:
        async with Lab() as lab:
            before = lab.nodes["node-2"]
            for beat in range(3):
                now = node(2, before.metadata.annotations | {"kubelet": f"beats {beat}"})
                lab.nodes["node-2"] = now
                lab.router.node_changed("node-2", before, now)
                before = now
            await lab.clock.advance(1)
            assert (lab.router.applied.runs, lab.runs) == (1, 1)
            moved = msgspec.structs.replace(before, spec=NodeSpec(pod_cidrs=("10.244.7.0/24",)))
            lab.nodes["node-2"] = moved
            lab.router.node_changed("node-2", before, moved)
            await lab.clock.advance(1)
            assert lab.router.applied.runs == 2

    asyncio.run(body())


def test_a_run_follows_now_and_then_without_any_change() -> None:
    async def body() -> None:
        async with Lab() as lab:
            await lab.clock.advance(3 * RESYNC_S)
            assert lab.runs == 4

    asyncio.run(body())


def test_failures_are_tried_again_with_a_backoff() -> None:
    async def body() -> None:
        async with Lab() as lab:
            lab.machine.failures = ["no"]
            lab.router.disturbed()
            await lab.clock.advance(0.1)
            assert lab.router.problem == "no"
            assert len(lab.announced) == 1
            await lab.clock.advance(2.0)
            assert 4 <= lab.runs <= 6
            lab.machine.failures = []
            await lab.clock.advance(10)
            assert lab.router.problem == ""
            assert len(lab.announced) == 2

    asyncio.run(body())


def test_the_first_pod_cidr_is_acted_on_at_once() -> None:
    async def body() -> None:
        lab = Lab()
        full, lab.nodes["node-1"] = lab.nodes["node-1"], Node(metadata=ObjectMeta(name="node-1"))
        async with lab:
            await lab.clock.advance(20)
            assert lab.runs == 0
            lab.nodes["node-1"] = full
            lab.router.node_changed("node-1", None, full)
            await lab.clock.advance(QUIET_S)
            assert lab.runs == 1

    asyncio.run(body())


def test_unreachable_api_gets_the_report_later() -> None:
    async def body() -> None:
        lab = Lab()
        lab.api_answers = False
        async with lab:
            await lab.clock.advance(1)
            reported = len(lab.announced)
            assert reported > 1
            lab.api_answers = True
            await lab.clock.advance(5)
            reported = len(lab.announced)
            await lab.clock.advance(5)
            assert len(lab.announced) == reported

    asyncio.run(body())


def test_a_failed_run_is_repeated_soon_after_a_change() -> None:
    async def body() -> None:
        lab = Lab()
        lab.machine.failures = ["eth0 is down"]
        async with lab:
            await lab.clock.advance(30)
            runs = lab.runs
            await lab.clock.advance(5)
            assert lab.runs - runs <= 1, "the backoff has grown"
            lab.machine.failures = []
            lab.router.disturbed()
            await lab.clock.advance(0.6)
            assert lab.router.settled

    asyncio.run(body())


def test_unnoticed_changes_are_looked_for_every_second() -> None:
    async def body() -> None:
        async with Lab() as lab:
            await lab.clock.advance(5)
            assert lab.runs == 1
            lab.machine.has_drifted = True
            await lab.clock.advance(CHECK_S + QUIET_S)
            assert lab.runs == 2
            lab.machine.has_drifted = False
            await lab.clock.advance(5)
            assert lab.runs == 2

    asyncio.run(body())


def test_missing_node_is_named() -> None:
    lab_router = Router("node-9", dict, MemoryMachine(), FakeClock())
    lab_router.reconcile()
    assert lab_router.problem == "no Node node-9"
    bare = Node(metadata=ObjectMeta(name="node-9"))
    router = Router("node-9", lambda: {"node-9": bare}, MemoryMachine(), FakeClock())
    router.reconcile()
    assert "no pod CIDR" in router.problem
    machine = MemoryMachine()
    machine.carries = False
    router = Router("node-1", lambda: {"node-1": node(1)}, machine, FakeClock())
    router.reconcile()
    assert "no device holds an InternalIP of Node node-1 (10.89.0.11)" in router.problem


def test_pods_of_a_removed_network_are_cut_off_first() -> None:
    machine = MemoryMachine()
    nodes = {"node-1": node(1), "node-2": node(2)}
    router = Router("node-1", lambda: nodes, machine, FakeClock())
    steps: list[tuple[int, str]] = []
    problem = ""

    def cut_off(plan: Plan) -> str:
        steps.append((len(machine.states), plan.facts.backend))
        return problem

    router.cut_off = cut_off
    router.reconcile()
    assert steps == [(0, "vxlan")] and len(machine.states) == 1
    router.configure(RoutingSettings(backend="hostgw"))
    problem = "cannot cut off pods"
    router.reconcile(full=False)
    assert steps[-1] == (1, "hostgw") and len(machine.states) == 1, "the kernel stays as it is"
    assert router.problem == problem and router.plan is not None and router.plan.facts.backend == "vxlan"
    problem = ""
    router.reconcile(full=False)
    assert len(machine.states) == 2 and not router.problem
