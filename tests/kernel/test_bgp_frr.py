"""The backend bgp with FRR as the router: passwords, communities, filters, BFD, graceful restart, several paths."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernel.bird_nodes import (
    OUTSIDE,
    ROUTER_AS,
    ask,
    bgp_filter,
    control,
    established,
    has_passwords,
    learned,
    objects,
    peer,
    pid,
    router_peers,
    settings,
    take,
)
from tests.kernel.frr_router import configuration, frr_router
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, Talk
from tests.kernel.routing_programs import Nodes, kill_programs, run, until

from podwire.routing.backends.bgp.objects import BgpObjects

Make = Callable[..., Cluster]

PODS = {"cidr": "10.244.0.0/16", "matchOperator": "In"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, segments: int = 1) -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments, "4"))
        clusters[0].need("bgp")
        return clusters[0]

    yield build
    kill_programs(tmp_path)
    for cluster in clusters:
        cluster.close()


def test_password_communities_and_filters_in_both_directions(make: Make) -> None:
    if not has_passwords():
        pytest.skip("the kernel has no TCP MD5 passwords (CONFIG_TCP_MD5SIG)")
    tor = {"peerIP": "10.89.0.1", "asNumber": ROUTER_AS, "filters": ["out", "in"]}
    both = ({"addCommunity": {"value": "64512:7"}}, {"addCommunity": {"value": "64512:1:8"}})
    twice = {"prependASPath": {"prefix": [64512, 64512]}}
    export = [
        {"action": "Accept", **PODS, "matchOperator": "Equal", "cidr": "10.244.1.0/24", "operations": both},
        {"action": "Accept", **PODS, "cidr": "10.244.2.0/24", "operations": [twice]},
        {"action": "Reject", **PODS},
    ]
    out = bgp_filter("out", exportV4=export)
    refuse = bgp_filter("in", importV4=[{"action": "Reject", "cidr": OUTSIDE, "matchOperator": "In"}])
    accept = bgp_filter("in", importV4=[{"action": "Accept", "cidr": OUTSIDE, "matchOperator": "Equal"}])

    def with_password(text: str) -> dict[str, object]:
        return peer("tor", **tor, password={"secretKeyRef": {"name": "bgp-secrets", "key": text}})

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        addresses = [node.ip for node in cluster.all]
        with frr_router(cluster, configuration(cluster, password="right")) as router:
            await nodes.use(settings(mesh=False))
            await take(cluster, nodes, with_password("wrong"), out, refuse)
            first = cluster.all[0]
            await until(lambda: "Connect" in ask(control(first), "show", "protocols", "peer_10_89_0_1"))
            assert "Established" not in router.states().values()
            await take(cluster, nodes, with_password("right"), out, refuse)
            expected = ("10.244.1.0/24", "10.244.2.0/24")  # a session is established before its routes arrive
            await until(lambda: router.established(*addresses) and all(router.paths(cidr) for cidr in expected))
            (path,) = router.paths("10.244.1.0/24")
            assert path["community"]["string"] == "64512:7" and path["largeCommunity"]["string"] == "64512:1:8"
            assert path["nexthops"][0]["ip"] == first.ip
            assert router.paths("10.244.2.0/24")[0]["aspath"]["string"] == "64512 64512 64512"
            assert not router.paths("10.244.3.0/24"), "the filter keeps it from the router"
            assert OUTSIDE not in learned(first)
            await take(cluster, nodes, with_password("right"), out, accept)
            await until(lambda: OUTSIDE in learned(first))
            assert router.established(*addresses)

    run(make(3), body)


def test_bfd_informs_the_router_about_a_hung_node(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        (first,) = cluster.all
        # BIRD's own 0.3 s end sessions on a busy machine, on which a process may wait for a second.
        with frr_router(cluster, configuration(cluster, neighbour=["bfd 3 1000 1000"])) as router:
            await nodes.use(settings(peers=router_peers(cluster, bfd=True)))
            await until(lambda: [item["status"] for item in router.ask("show bfd peers")] == ["up"])
            assert router.ask("show bfd peers")[0]["receive-interval"] == 1000
            await until(lambda: "10.244.1.0/24" in router.routes())
            os.kill(pid(first), signal.SIGSTOP)
            try:
                await until(lambda: [item["status"] for item in router.ask("show bfd peers")] == ["down"])
                await until(lambda: not router.established(first.ip))  # in one minute, the hold time is four
            finally:
                os.kill(pid(first), signal.SIGCONT)
            await until(lambda: router.established(first.ip) and "10.244.1.0/24" in router.routes())

    run(make(1), body)


def test_router_keeps_the_routes_of_a_bird_that_restarts(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        first, second = cluster.all
        with frr_router(cluster, configuration(cluster)) as router:
            await nodes.use(settings(peers=router_peers(cluster)))
            await until(lambda: all(f"10.244.{number}.0/24" in router.routes() for number in (1, 2)))
            await until(lambda: "10.244.2.0/24" in learned(first) and "10.244.1.0/24" in learned(second))
            a, b = first.pod("a"), second.pod("b")
            with b.running(ECHO_SERVER), router.changes() as changes:
                talk = Talk(a, b)
                for node in cluster.all:
                    number = pid(node)
                    os.kill(number, signal.SIGKILL)
                    await until(lambda node=node, number=number: pid(node) not in (0, number))  # type: ignore[misc]
                    await until(lambda node=node: established(control(node), 2))  # type: ignore[misc]
                await until(lambda: router.established(first.ip, second.ip))
                assert talk.end() == 0, "no segment is lost"
                assert not [line for line in changes() if line.startswith("Deleted 10.244.")]

    run(make(2, segments=2), body)


def test_node_gets_several_paths_from_the_router(make: Make) -> None:
    services = "10.96.0.0/16"

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        first, second, third = cluster.all
        with frr_router(cluster, configuration(cluster, family=["addpath-tx-all-paths"])) as router:
            section = settings(mesh=False, addPaths=True, peers=router_peers(cluster))
            announces = objects({"kind": "X", "name": "default", "spec": {"serviceClusterIPs": [{"cidr": services}]}})
            for node in cluster.all:
                node.router.take_objects("bgp", BgpObjects() if node is third else announces)
            await nodes.use(section)
            await until(lambda: len(router.paths(services)) == 2)
            route = ("show", "route", services, "all")
            await until(lambda: ask(control(third), *route).count("BGP.next_hop:") == 2)
            assert all(f"BGP.next_hop: {node.ip}" in ask(control(third), *route) for node in (first, second))
            await until(lambda: services in learned(third))

    run(make(3), body)
