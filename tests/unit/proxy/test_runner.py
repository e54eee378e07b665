"""The loop over the sources, with a fake clock and a data plane that only remembers."""

import asyncio
import os

import msgspec
import pytest
from tests.unit.proxy.runner_bench import SERVICE, Bench, piece, run

from podwire.dataplane.plane import Written
from podwire.model.meta import ObjectMeta
from podwire.model.node import ZONE_LABEL, Node, NodeAddress, NodeSpec, NodeStatus
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import NodeFacts


def test_nothing_is_written_before_everything_is_known() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running(synced=False):
            bench.services.put("default/web", SERVICE)
            bench.services.synced.set()
            await asyncio.sleep(0.01)
            assert bench.plane.calls == []
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            bench.slices.synced.set()
            await asyncio.sleep(0.01)
            assert bench.plane.calls == []
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),))
            bench.nodes.put("n1", Node(metadata=ObjectMeta(name="n1"), status=status))
            bench.nodes.synced.set()
            assert await bench.calls(1) == [("load", ("default/web=10.0.0.1:8080",))]
            assert bench.plane.facts == NodeFacts(name="n1", addresses=("192.168.99.1",))

    run(scenario)


def test_changes_are_coalesced_and_only_theirs_is_resolved() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            assert (await bench.calls(2))[1:] == [("update", ("default/web=10.0.0.1:8080",))]
            assert bench.clock.slept == [0.002]
            bench.slices.put("default/web-1", piece("10.0.0.2"))
            assert (await bench.calls(3))[2:] == [("update", ("default/web=10.0.0.2:8080",))]
            bench.services.put("default/web", None)
            await bench.calls(4)
            assert bench.proxy.services == {}

    run(scenario)


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.05, 0.2), (3.0, 1.0)])
def test_next_commit_waits_in_proportion_to_the_last(took_s: float, rest_s: float) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():

            def work() -> None:
                bench.clock.time += took_s
                if len(bench.plane.calls) == 1:
                    bench.slices.put("default/web-1", piece("10.0.0.1"))

            bench.plane.work = work
            bench.services.put("default/web", SERVICE)
            assert await bench.calls(3) == [
                ("load", ()), ("update", ("default/web=",)), ("update", ("default/web=10.0.0.1:8080",)),
            ]  # fmt: skip
            bench.clock.time += 60
            bench.services.put("default/web", None)
            await bench.calls(4)
            assert bench.clock.slept == [0.002, pytest.approx(rest_s), 0.002]

    run(scenario)


def test_an_unexpected_failure_loses_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(ExceptionGroup):
            async with bench.running():
                bench.plane.surprises = 1
                bench.services.put("default/web", SERVICE)
                await asyncio.sleep(0.1)
        bench.plane.read, bench.plane.write = os.pipe()
        async with bench.running():
            assert (await bench.calls(2))[1:] == [("load", ("default/web=",))]
            bench.services.put("default/web", None)
            await bench.calls(3)
            assert bench.told.events.count("service") == 2

    run(scenario)


def test_a_slice_that_changes_its_service_leaves_the_old_one() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            await bench.calls(2)
            bench.slices.put("default/web-1", piece("10.0.0.1", service="other"))
            assert (await bench.calls(3))[2:] == [("update", ("default/web=",))]

    run(scenario)


def test_changes_during_resolution_are_in_the_next_commit() -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(1000):
            bench.services.put(f"default/web{number}", SERVICE)
        bench.services.put("default/web", SERVICE)
        bench.clock.at_zero = lambda: bench.slices.put("default/web-1", piece("10.0.0.1"))
        async with bench.running():
            await bench.calls(1)
            assert str(bench.proxy.services["default/web"][0].cluster_endpoints[0]) == "10.0.0.1:8080"
            assert any("default/web=10.0.0.1:8080" in texts for _, texts in bench.plane.calls)
            assert bench.clock.slept.count(0) == 5

    run(scenario)


def test_irrelevant_changes_of_objects_write_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            await bench.calls(2)
            bench.services.put("default/web", SERVICE)
            await bench.proxy.programmed.wait()
            assert len(bench.plane.calls) == 2

    run(scenario)


def test_a_changed_node_means_all() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),))
            node = Node(metadata=ObjectMeta(name="n1", labels={ZONE_LABEL: "z1"}), status=status)
            bench.nodes.put("n2", Node(metadata=ObjectMeta(name="n2")))
            bench.nodes.put("n1", node)
            assert [subject for subject, _ in await bench.calls(2)] == ["load", "load"]
            assert bench.plane.facts == NodeFacts(name="n1", zone="z1", addresses=("192.168.99.1",))
            bench.nodes.put("n1", node)
            await asyncio.sleep(0.01)
            assert len(bench.plane.calls) == 2

    run(scenario)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_refusal_is_tried_again_with_everything(failures: int) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.failures = failures
            bench.services.put("default/web", SERVICE)
            assert (await bench.calls(2))[1:] == [("load", ("default/web=",))]
            assert len([delay for delay in bench.clock.slept if delay >= 0.1]) == failures

    run(scenario)


def test_disturbed_rules_are_healed() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.work = lambda: setattr(bench.clock, "time", bench.clock.time + 0.5)
            for count in (2, 3):
                os.write(bench.plane.write, b"x")
                assert (await bench.calls(count))[1:] == [("heal", ())] * (count - 1)
                assert await bench.forgot(count - 1)
            assert bench.clock.slept == [0.0, 0.5]

    run(scenario)


def test_named_parts_are_restored_at_once_while_a_repair_rests() -> None:
    async def scenario(bench: Bench) -> None:
        def restore() -> Written:
            bench.plane.calls.append(("restore", ()))
            return ("rule",)

        async with bench.running():
            setattr(bench.plane, "restore", restore)  # noqa: B010
            bench.plane.whole = True
            forgot: list[int] = []

            def heal() -> None:
                forgot.append(bench.gaps)
                bench.clock.time += 0.5

            bench.plane.work = heal
            os.write(bench.plane.write, b"x")
            assert (await bench.calls(3))[1:] == [("restore", ()), ("heal", ())]
            assert forgot == [1], "before the heal reads everything"
            assert await bench.forgot(2), "although the heal found nothing to do"
            bench.clock.blocked = True
            os.write(bench.plane.write, b"x")
            assert (await bench.calls(4))[3:] == [("restore", ())]

    run(scenario)


@pytest.mark.parametrize("lacks", [False, True])
def test_early_flows_are_forgotten_when_the_kernel_lacked_rules(lacks: bool) -> None:
    async def scenario(bench: Bench) -> None:
        bench.plane.lacks = lacks
        bench.services.put("default/web", SERVICE)
        async with bench.running():
            assert bench.gaps == lacks
            bench.proxy.configure(NodeFacts(name="n1", masquerade_all=True))
            assert [subject for subject, _ in await bench.calls(2)] == ["load", "load"]
            assert bench.gaps == lacks, "whatever else is written: the rules were there"

    run(scenario)


def test_rules_are_restored_before_a_change_is_written() -> None:
    async def scenario(bench: Bench) -> None:
        def restore() -> Written:
            bench.plane.calls.append(("restore", ()))
            return ("rule",)

        async with bench.running():
            setattr(bench.plane, "restore", restore)  # noqa: B010
            bench.services.put("default/web", SERVICE)
            bench.plane.unheard = True
            expected = [("restore", ()), ("update", ("default/web=",)), ("heal", ())]
            assert (await bench.calls(4))[1:] == expected

    run(scenario)


def test_flows_are_forgotten_after_a_repair_before_everything_is_read() -> None:
    async def scenario(bench: Bench) -> None:
        def repair() -> Written:
            bench.plane.calls.append(("repair", ()))
            return ("rules",)

        async with bench.running():
            setattr(bench.plane, "repair", repair)  # noqa: B010
            bench.plane.whole = True
            forgot: list[int] = []
            bench.plane.work = lambda: forgot.append(bench.gaps)
            bench.services.put("default/web", SERVICE)
            bench.plane.unheard = True
            expected = [("repair", ()), ("update", ("default/web=",)), ("heal", ())]
            assert (await bench.calls(4))[1:] == expected
            assert forgot == [0, 1], "after the change, and before the heal reads everything"
            assert await bench.forgot(2), "although the heal found nothing to do"

    run(scenario)


def test_flushed_rules_do_not_wait_after_a_commit() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.work = lambda: setattr(bench.clock, "time", bench.clock.time + 0.5)
            bench.services.put("default/web", SERVICE)
            await bench.calls(2)
            bench.clock.blocked = True
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            await asyncio.sleep(0.01)
            assert bench.clock.slept[-1] == pytest.approx(1.0), "the rest after a commit of 0.5 s"
            bench.clock.blocked = False
            os.write(bench.plane.write, b"x")
            expected = [("update", ("default/web=10.0.0.1:8080",)), ("heal", ())]
            assert (await bench.calls(4))[2:] == expected
            assert bench.clock.slept[-1] == 0.0

    run(scenario)


def test_refused_heal_causes_a_load_and_forgets_new_flows() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.failures, bench.plane.lacks = 1, True
            os.write(bench.plane.write, b"x")
            assert [subject for subject, _ in await bench.calls(2)] == ["load", "load"]
            assert await bench.forgot(1)

    run(scenario)


@pytest.mark.parametrize(("full", "flushed"), [(False, False), (False, True), (True, False), (True, True)])
def test_flows_are_forgotten_after_a_write_that_repaired_rules(full: bool, flushed: bool) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.whole = bench.plane.lacks = True
            bench.plane.work = lambda: setattr(bench.plane, "unheard", flushed and len(bench.plane.calls) == 1)
            if full:
                bench.proxy.configure(NodeFacts(name="n1", masquerade_all=True))
            else:
                bench.services.put("default/web", SERVICE)
            expected = ["load", "load" if full else "update", *(["heal"] if flushed else [])]
            assert [subject for subject, _ in await bench.calls(len(expected))] == expected
            assert await bench.forgot(flushed)

    run(scenario)


def test_unnoticed_disturbance_during_a_write_is_healed_after() -> None:
    async def scenario(bench: Bench) -> None:
        disturbances = iter((True, True))

        def disturb() -> None:
            bench.plane.unheard = next(disturbances, False)

        bench.plane.work = disturb
        async with bench.running():
            assert await bench.calls(3) == [("load", ()), ("heal", ()), ("heal", ())]

    run(scenario)


def test_flows_are_looked_at_after_udp_changes() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            await bench.calls(2)
            bench.services.put("default/web", None)
            await bench.calls(3)
            assert bench.flows == [(0, 1), (1, 0)]

    run(scenario)


def test_refused_commit_is_reported_and_loses_no_change() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.failures = 1
            bench.services.put("default/web", SERVICE)
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            bench.slices.put("default/other", piece("10.0.0.1", service=""))
            assert not bench.proxy.problem, "a change on its way is no problem"
            await bench.calls(2)
            assert bench.told.problems == ["Services are not programmed: nft add element: errno 12"]
            assert not bench.proxy.problem
            assert bench.told.events == [
                "begin", "committed all", "service", "endpoints web-1",
                "begin", "refused 12", "begin", "committed alldefault/web", "forgot 0",
            ]  # fmt: skip
            assert bench.flows == [(0, 1)]

    run(scenario)


def test_pods_may_be_those_of_the_node_s_own_ranges() -> None:
    async def scenario(bench: Bench) -> None:
        facts = NodeFacts(name="n1", pod_cidrs_of_node=True)
        sources = Sources(bench.services, bench.slices, bench.nodes)
        bench.proxy = ServiceProxy(sources, bench.plane, facts, bench.clock)
        async with bench.running():
            bench.nodes.put("n1", Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(pod_cidrs=("10.0.1.0/24",))))
            await bench.calls(2)
            assert bench.plane.facts is not None
            assert bench.plane.facts.pod_cidrs == ("10.0.1.0/24",)

    run(scenario)


def test_new_settings_reload_all_and_keep_node_facts() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),))
            labels, spec = {ZONE_LABEL: "z1"}, NodeSpec(pod_cidrs=("10.0.1.0/24",))
            bench.nodes.put("n1", Node(metadata=ObjectMeta(name="n1", labels=labels), spec=spec, status=status))
            external = msgspec.structs.replace(SERVICE.spec, external_ips=("203.0.113.7",))
            bench.services.put("default/web", msgspec.structs.replace(SERVICE, spec=external))
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            await bench.calls(2)
            (port,) = bench.proxy.services["default/web"]
            assert port.external_ips == ("203.0.113.7",)
            bench.proxy.configure(NodeFacts(name="n1", pod_cidrs_of_node=True, masquerade_bit=3, external_ips=False))
            assert (await bench.calls(3))[2:] == [("load", ("default/web=10.0.0.1:8080",))]
            facts = NodeFacts(
                name="n1", zone="z1", addresses=("192.168.99.1",), pod_cidrs=("10.0.1.0/24",), pod_cidrs_of_node=True,
                masquerade_bit=3, external_ips=False,
            )  # fmt: skip
            assert bench.plane.facts == bench.proxy.facts == facts
            (port,) = bench.proxy.services["default/web"]
            assert port.external_ips == ()

    run(scenario)
