"""The backend bgp with real BIRD processes: the mesh, routers, reflectors, live changes and crashes under traffic."""

import os
import re
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel import bird_nodes
from tests.kernel.bird_nodes import (
    OUTSIDE,
    Make,
    ask,
    control,
    established,
    has_passwords,
    pid,
    router,
    router_peers,
    sessions,
    settings,
)
from tests.kernel.routing_nodes import (
    ECHO_SERVER,
    SOURCE_REPLY_SERVER,
    Cluster,
    ClusterNode,
    Talk,
    inside,
    source_seen,
)
from tests.kernel.routing_programs import Nodes, run, until

from podwire.bgp.birdconf import METRIC
from podwire.errors import ConfigError
from podwire.routing.settings import RoutingSettings
from podwire.runtime.clock import SystemClock

make = bird_nodes.make


def learned(cluster: Cluster, number: int) -> str:
    """The routes that BIRD wrote on a node."""
    return bird_nodes.learned(cluster.all[number])


def test_three_nodes_form_a_mesh_in_both_families(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings())
        await until(lambda: all(established(control(node), 4) for node in cluster.all))
        first = cluster.all[0]
        assert "10.244.2.0/24 via 10.89.0.12 dev eth0 proto 113" in first.shows("ip", "route")
        await until(lambda: "10.244.3.0/24" in ask(control(first), "show", "route"))
        assert learned(cluster, 0) == "", "podwire's plan has the routes to peers of the same subnet"
        a, b = first.pod("a"), cluster.all[1].pod("b")
        with b.running(SOURCE_REPLY_SERVER):
            assert source_seen(a.place, b.address) == a.address
            assert source_seen(a.place, b.address6) == a.address6

    run(make(3, families="46"), body)


def test_bfd_watches_the_sessions_between_nodes(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings(bfd=True, addPaths=True))
        first, second = cluster.all
        await until(lambda: established(control(first), 1) and established(control(second), 1))
        await until(lambda: re.search(rf"^{second.ip} +\S+ +Up ", ask(control(first), "show", "bfd", "sessions"), re.M))
        os.kill(pid(second), signal.SIGSTOP)
        try:
            await until(lambda: not established(control(first), 1))
        finally:
            os.kill(pid(second), signal.SIGCONT)
        await until(lambda: established(control(first), 1))

    run(make(2), body)


def test_bird_goes_on_after_a_refused_configuration(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings())
        node = cluster.all[0]
        await until(lambda: established(control(node), 1))
        before = (pid(node), sessions(control(node)))
        assert node.router.plan is not None and node.router.programs.children is not None
        (bird,) = node.router.plan.children
        (file,) = bird.files
        with pytest.raises(ConfigError, match=r"bird\.conf\.new:1:8 syntax error"):
            await node.router.programs.children.apply([replace(bird, files={file: b"router nonsense;\n"})])
        await nodes.settle()
        assert (pid(node), sessions(control(node))) == before

    run(make(2), body)


def test_pods_reach_each_other_through_a_router_that_learns(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        with router(cluster) as where:
            await nodes.use(settings(peers=router_peers(cluster)))
            first, second, third = cluster.all
            await until(lambda: all(f"10.244.{number}.0/24" in learned_by_router(cluster) for number in (1, 2, 3)))
            await until(lambda: "10.244.2.0/24" in learned(cluster, 0) and "10.244.1.0/24" in learned(cluster, 1))
            assert f"10.244.2.0/24 via 10.89.1.1 dev eth0 src {first.ip} metric {METRIC}" in learned(cluster, 0)
            assert f"10.244.{third.number}." not in learned(cluster, 0), "node-3 is on the subnet of node-1"
            assert OUTSIDE in learned(cluster, 0)
            first.shows("ip", "route", "flush", "proto", "bird")
            await until(lambda: "10.244.2.0/24" in learned(cluster, 0) and OUTSIDE in learned(cluster, 0))
            a, b = first.pod("a"), second.pod("b")
            with b.running(SOURCE_REPLY_SERVER):
                assert source_seen(a.place, b.address) == a.address
                assert source_seen(first.place, b.address) == first.ip
            assert established(where, 3)

    run(make(3, segments=2), body)


def learned_by_router(cluster: Cluster) -> str:
    return inside(cluster.fabric, "ip", "route", "show", "proto", "bird")


def test_a_router_with_a_password_takes_only_its_own(make: Make) -> None:
    if not has_passwords():
        pytest.skip("the kernel has no TCP MD5 passwords (CONFIG_TCP_MD5SIG)")

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        with router(cluster, "right") as where:
            await nodes.use(settings(peers=router_peers(cluster, password="wrong")))
            await until(lambda: all(established(control(node), 0) is False for node in cluster.all))
            await SystemClock().sleep(2)
            assert not established(where, 2)
            await nodes.use(settings(peers=router_peers(cluster, password="right", communities=["64512:7"])))
            await until(lambda: established(where, 2))
            await until(lambda: "(64512,7)" in ask(where, "show", "route", "all", "10.244.1.0/24"))

    run(make(2), body)


def test_a_changed_peer_leaves_process_and_other_sessions(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings())
        await until(lambda: all(established(control(node), 2) for node in cluster.all))
        before = [(pid(node), sessions(control(node))) for node in cluster.all]
        assert all(number for number, _ in before)
        with router(cluster) as where:
            await nodes.use(settings(peers=router_peers(cluster)))
            await until(lambda: established(where, 3))
            for node, (number, known) in zip(cluster.all, before, strict=True):
                await until(lambda node=node: established(control(node), 3))  # type: ignore[misc]
                assert pid(node) == number
                assert {name: sessions(control(node))[name] for name in known} == known
            await nodes.use(settings())
            for node, (number, known) in zip(cluster.all, before, strict=True):
                assert (pid(node), sessions(control(node))) == (number, known)

    run(make(3), body)


def _has_number(node: ClusterNode, number: int) -> bool:
    """Whether the session of a node is established, with this number on both sides."""
    shown = ask(control(node), "show", "protocols", "all")
    return re.findall(r"(?:Neighbor|Local) AS: +(\d+)", shown) == [str(number)] * 2 and established(control(node), 1)


def test_another_as_number_is_in_force_in_the_same_process(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings())
        await until(lambda: all(established(control(node), 1) for node in cluster.all))
        numbers = [pid(node) for node in cluster.all]
        with pods[1].running(ECHO_SERVER):
            talk = Talk(pods[0], pods[1])
            await nodes.use(settings(asNumber=64999))
            await until(lambda: all(_has_number(node, 64999) for node in cluster.all))
            assert talk.end() == 0, "no segment is lost"
        assert [pid(node) for node in cluster.all] == numbers

    cluster = make(2)
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    run(cluster, body)


def test_killed_bird_and_agent_lose_no_packet(make: Make) -> None:
    talks: list[Talk] = []
    peers: list[dict[str, object]] = []

    async def first_life(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings(peers=peers))
        await until(lambda: "10.244.2.0/24" in learned(cluster, 0) and "10.244.1.0/24" in learned(cluster, 1))
        talks.extend((Talk(pods[0], pods[1]), Talk(pods[0], pods[2])))
        for node in cluster.all:
            number = pid(node)
            os.kill(number, signal.SIGKILL)
            await until(lambda node=node, number=number: pid(node) not in (0, number))  # type: ignore[misc]
            await until(lambda node=node: "Established" in ask(control(node), "show", "protocols"))  # type: ignore[misc]
        await SystemClock().sleep(1)
        assert not any(talk.failure for talk in talks)

    async def second_life(cluster: Cluster, nodes: Nodes) -> None:
        numbers = [pid(node) for node in cluster.all]
        await nodes.use(settings(peers=peers))
        assert [pid(node) for node in cluster.all] == numbers and len(nodes.adopted) == 3
        await until(lambda: "10.244.2.0/24" in learned(cluster, 0))
        await SystemClock().sleep(1)
        assert [talk.end() for talk in talks] == [0, 0], "no segment is lost"

    cluster = make(3, segments=2)
    peers += router_peers(cluster)
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    with router(cluster), pods[1].running(ECHO_SERVER), pods[2].running(ECHO_SERVER):
        run(cluster, first_life, second_life)


def test_one_of_two_reflectors_may_die(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings(mesh=False, reflectors={"nodes": ["node-1", "node-2"]}))
        first, _second, third, fourth = cluster.all
        await until(lambda: established(control(third), 2) and established(control(fourth), 2))
        await until(lambda: ask(control(third), "show", "route", "10.244.4.0/24", "all").count("BGP.next_hop") == 2)
        assert established(control(first), 3) and "node_10_89_0_14" not in sessions(control(third))
        a, b = third.pod("a"), fourth.pod("b")
        with b.running(ECHO_SERVER):
            talk = Talk(a, b)
            assert first.router.programs.children is not None
            await first.router.programs.children.apply(())
            await until(lambda: sessions(control(third))["node_10_89_0_11"][1] != "Established")
            await until(lambda: ask(control(third), "show", "route", "10.244.4.0/24", "all").count("BGP.next_hop") == 1)
            assert talk.end() == 0, "no segment is lost"

    run(make(4), body)


def test_another_backend_leaves_nothing_of_bird(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        with router(cluster):
            await nodes.use(settings(peers=router_peers(cluster)))
            await until(lambda: OUTSIDE in learned(cluster, 0))
            await nodes.use(RoutingSettings(backend="vxlan"))
            for node in cluster.all:
                assert pid(node) == 0
                assert node.shows("ip", "route", "show", "proto", "bird") == ""
                files = [file.name for file in Path(node.router.own.run_dir).rglob("*") if file.is_file()]
                assert files == ["bird.log"]

    run(make(2, segments=2), body)
