"""Addresses of load balancers at a router: FRR gets routes from the engine of the nodes, and spreads connections."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace
from tests.kernel.bird_nodes import OUTSIDE, ROUTER_AS, learned, objects, peer, pid, settings
from tests.kernel.frr_router import FrrRouter, configuration, frr_router
from tests.kernel.routing_nodes import Cluster, ClusterNode, inside, ip_batch
from tests.kernel.routing_programs import Nodes, kill_programs, run, until
from tests.kernel.sockets import socket_in

from podwire.bgp.configuration import BfdTimes, BgpConfiguration, ServiceRoutes
from podwire.bgp.process import bird_child, router_id
from podwire.kernel import sysctl
from podwire.loadbalancer.bgppeers import BgpScope, RouterPeer
from podwire.loadbalancer.bgproutes import BgpFacts, plan_routes
from podwire.loadbalancer.election import Serving
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import parse_range
from podwire.model.meta import ObjectMeta
from podwire.model.service import LoadBalancerIngress, LoadBalancerStatus, Service, ServiceSpec, ServiceStatus

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Make(Protocol):
    def __call__(self, count: int, families: str = "4") -> Cluster: ...


VIP = "198.18.0.1"
VIP6 = "2001:db8::1"
RANGES = tuple(parse_range("p", "", text) for text in ("198.18.0.0/24", "2001:db8::/120"))
POOLS = BalancerPools({"p": BalancerPool(name="p", ranges=RANGES)})
TOR = RouterPeer(name="tor", address=ip_address("10.89.0.1"), my_as=64512, peer_as=ROUTER_AS, connect_retry_s=1)
SCOPE = BgpScope(name="all", communities=((64512, 7), (64512, 1, 8)))
PORT = 80


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, families: str = "4") -> Cluster:
        clusters.append(Cluster(tmp_path, count, 1, families))
        clusters[0].need("bgp")
        return clusters[0]

    yield build
    kill_programs(tmp_path)
    for cluster in clusters:
        cluster.close()


def planned(
    node: ClusterNode, *serving: str, local: bool = False, addresses: tuple[str, ...] = (VIP,), **fields: object
) -> ServiceRoutes:
    """The routes of a node for one Service with endpoints on some nodes."""
    service = Service(
        metadata=ObjectMeta(name="web", namespace="shop", annotations={"metallb.io/ip-allocated-from-pool": "p"}),
        spec=ServiceSpec(type="LoadBalancer", external_traffic_policy="Local" if local else "Cluster"),
        status=ServiceStatus(load_balancer=LoadBalancerStatus(tuple(LoadBalancerIngress(ip=a) for a in addresses))),
    )
    default: dict[str, object] = {
        "services": {"shop/web": service},
        "endpoints": {"shop/web": Serving(frozenset(serving), bool(serving))},
        "pools": POOLS,
        "scopes": {"all": SCOPE},
        "peers": {"tor": TOR},
    }
    facts = BgpFacts(**(default | fields))  # type: ignore[arg-type]
    return plan_routes(facts, node.cluster.nodes[node.name]).routes


async def deliver(node: ClusterNode, routes: ServiceRoutes) -> None:
    """Makes an engine of its own announce the routes, as the agent does."""
    run_dir = node.router.own.run_dir
    config = BgpConfiguration(
        router_id=router_id(ip_address(node.ip), node.name),
        link="eth0",
        service_networks=routes.networks,
        sessions=routes.sessions,
        log_file=f"{run_dir}/bird.log",
        log_level="debug",
    )
    assert node.router.programs.children is not None
    await node.router.programs.children.apply((bird_child(run_dir, config),))


def next_hops(router: FrrRouter) -> set[str]:
    """The nodes to which the kernel of the router sends packets for the address."""
    lines = router.routes().splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(VIP)), None)
    if start is None:
        return set()
    block = [lines[start], *[line for line in lines[start + 1 :] if line.startswith("\t")]]
    words = " ".join(block).split()
    return {words[number + 1] for number, word in enumerate(words) if word == "via"}


@contextmanager
def answering(node: ClusterNode) -> Iterator[None]:
    """The node answers connections to the address with its name, in place of the Service proxy."""
    ip_batch(node.place, f"address add {VIP}/32 dev lo")
    with socket_in(node.place, blocking=True) as server:
        server.bind((VIP, PORT))
        server.listen(64)

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.sendall(node.name.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def asked(cluster: Cluster) -> str:
    """The name of the node that answers a connection from the router; empty without an answer."""
    with socket_in(cluster.fabric, blocking=True) as client:
        client.settimeout(5)
        try:
            client.connect((VIP, PORT))
            return client.recv(100).decode()
        except OSError:
            return ""


def test_a_router_spreads_connections_over_the_nodes(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        every = [node.name for node in cluster.all]
        sysctl.write("net/ipv4/fib_multipath_hash_policy", "1", cluster.fabric)
        with frr_router(cluster, configuration(cluster)) as router, ExitStack() as stack:
            for node in cluster.all:
                stack.enter_context(answering(node))
                await deliver(node, planned(node, *every))
            await until(lambda: next_hops(router) == {node.ip for node in cluster.all})
            paths = router.paths(f"{VIP}/32")
            assert [path["community"]["string"] for path in paths] == ["64512:7"] * 3
            assert [path["largeCommunity"]["string"] for path in paths] == ["64512:1:8"] * 3
            assert {asked(cluster) for _ in range(60)} == set(every)
            assert [learned(node) for node in cluster.all] == ["", "", ""], "the nodes accept nothing"
            assert router.paths("10.244.1.0/24") == [], "pod networks are not announced"

            (first, *rest) = cluster.all
            with router.changes() as changes:
                for node in cluster.all:
                    await deliver(node, planned(node, *(other.name for other in rest), local=True))
                await until(lambda: next_hops(router) == {node.ip for node in rest})
                assert first.ip in router.states() and router.established(*(node.ip for node in cluster.all))
                assert {asked(cluster) for _ in range(40)} == {node.name for node in rest}
                assert not [line for line in changes() if line.startswith("Deleted") and VIP in line]
            for node in cluster.all:
                await deliver(node, planned(node))
            await until(lambda: next_hops(router) == set())

    run(make(3), body)


def test_bfd_informs_the_router_about_a_hung_engine(make: Make) -> None:
    fast = replace(TOR, bfd=BfdTimes(receive_ms=100, transmit_ms=100, multiplier=3))

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        every = [node.name for node in cluster.all]
        with frr_router(cluster, configuration(cluster, neighbour=["bfd"])) as router:
            for node in cluster.all:
                await deliver(node, planned(node, *every, peers={"tor": fast}))
            await until(lambda: next_hops(router) == {node.ip for node in cluster.all})
            await until(lambda: [item["status"] for item in router.ask("show bfd peers")] == ["up", "up"])
            first, second = cluster.all
            os.kill(pid(first), signal.SIGSTOP)
            try:
                await until(lambda: next_hops(router) == {second.ip})
            finally:
                os.kill(pid(first), signal.SIGCONT)
            await until(lambda: next_hops(router) == {node.ip for node in cluster.all})

    run(make(2), body)


def test_one_session_carries_both_families(make: Make) -> None:
    both = replace(TOR, has_both_families=True)

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        (node,) = cluster.all
        ip_batch(cluster.fabric, "address add fd89::1/64 dev br0 nodad")
        lines = configuration(cluster)
        lines += [" address-family ipv6 unicast", f"  neighbor {node.ip} activate", " exit-address-family"]
        with frr_router(cluster, lines) as router:

            def paths() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = router.ask(f"show bgp ipv6 unicast {VIP6}/128").get("paths", [])
                return found

            await deliver(node, planned(node, node.name, addresses=(VIP, VIP6), peers={"tor": both}))
            await until(lambda: next_hops(router) == {node.ip} and paths())
            (path,) = paths()
            assert path["nexthops"][0]["ip"] == node.ip6 and path["community"]["string"] == "64512:7"
            await until(lambda: VIP6 in inside(router.place, "ip", "-6", "route", "show", "proto", "bgp"))
            await deliver(node, planned(node, node.name, peers={"tor": both}))
            await until(lambda: not paths())
            assert router.established(node.ip) and next_hops(router) == {node.ip}

    run(make(1, "46"), body)


def test_a_new_password_disturbs_no_other_session(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        (node,) = cluster.all

        def peers(password: str) -> dict[str, RouterPeer]:
            return {"tor": TOR, "away": replace(TOR, address=ip_address("10.89.0.99"), password=password)}

        with frr_router(cluster, configuration(cluster)) as router:
            await deliver(node, planned(node, node.name, peers=peers("first")))
            await until(lambda: next_hops(router) == {node.ip})
            await deliver(node, planned(node, node.name, peers=peers("second"), scopes={}))
            await until(lambda: next_hops(router) == set())
            assert 'password "second"' in Path(node.router.own.run_dir, "bird.conf").read_text()
            (neighbour,) = router.ask("show bgp neighbors").values()
            assert neighbour["connectionsEstablished"] == 1 and neighbour["connectionsDropped"] == 0

    run(make(1), body)


@pytest.mark.parametrize("graceful", [True, False])
def test_a_killed_engine_keeps_its_routes_if_asked(make: Make, graceful: bool) -> None:
    tor = replace(TOR, keeps_routes=graceful)

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        (node,) = cluster.all
        lines = configuration(cluster)
        lines.insert(1, " bgp graceful-restart")
        with frr_router(cluster, lines) as router:
            await deliver(node, planned(node, node.name, peers={"tor": tor}))
            await until(lambda: next_hops(router) == {node.ip})
            old = pid(node)
            with router.changes() as changes:
                os.kill(old, signal.SIGKILL)
                await until(lambda: pid(node) not in (0, old))
                await until(lambda: router.established(node.ip) and next_hops(router) == {node.ip})
                withdrawn = [line for line in changes() if line.startswith("Deleted") and VIP in line]
            assert bool(withdrawn) is not graceful

    run(make(1), body)


def test_the_backend_bgp_announces_pods_and_load_balancers_together(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        addresses = [node.ip for node in cluster.all]
        with frr_router(cluster, configuration(cluster)) as router:
            await nodes.use(settings(mesh=False))
            tor = peer("tor", peerIP="10.89.0.1", asNumber=ROUTER_AS)
            for node in cluster.all:
                values = replace(objects(tor), services=planned(node, *(n.name for n in cluster.all)))
                node.router.take_objects("bgp", values)
            await nodes.settle()
            await until(lambda: router.established(*addresses))
            await until(lambda: next_hops(router) == set(addresses) and router.paths("10.244.1.0/24"))
            assert [path["community"]["string"] for path in router.paths(f"{VIP}/32")] == ["64512:7"] * 2
            assert all(OUTSIDE in learned(node) for node in cluster.all), "routing accepts what it accepted"
            for node in cluster.all:
                node.router.take_objects("bgp", objects(tor))
            await nodes.settle()
            await until(lambda: next_hops(router) == set())
            assert router.established(*addresses) and router.paths("10.244.1.0/24")

    run(make(2), body)


def test_a_router_is_found_by_its_device_alone(make: Make) -> None:
    lines = [
        f"router bgp {ROUTER_AS}",
        " bgp router-id 10.89.0.1",
        " no bgp ebgp-requires-policy",
        " neighbor br0 interface remote-as 64512",
        " neighbor br0 timers connect 1",
        " address-family ipv6 unicast",
        "  neighbor br0 activate",
        " exit-address-family",
    ]
    unnumbered = RouterPeer(
        name="tor", address=ip_address("::"), interface="eth0", my_as=64512, peer_as=ROUTER_AS, has_both_families=True
    )

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        (node,) = cluster.all
        with frr_router(cluster, lines) as router:
            addresses = (VIP, VIP6)
            await deliver(node, planned(node, node.name, peers={"tor": unnumbered}, addresses=addresses))
            await until(lambda: router.established("br0"))
            await until(lambda: VIP in router.routes())
            assert f"{VIP} nhid" in router.routes() or f"{VIP} via inet6 fe80" in router.routes()
            shown = inside(cluster.fabric, "ip", "-6", "route", "show", VIP6)
            assert "via fe80" in shown and "dev br0" in shown
            with answering(node):
                assert asked(cluster) == node.name
            await deliver(node, ServiceRoutes())
            await until(lambda: VIP not in router.routes())

    run(make(1, "46"), body)


def test_a_router_of_the_same_number_gets_preference_and_aggregate(make: Make) -> None:
    scope = BgpScope(name="all", lengths={4: 24, 6: 128}, local_pref=150)
    tor = replace(TOR, my_as=ROUTER_AS)

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        (node,) = cluster.all
        lines = [line.replace("remote-as 64512", f"remote-as {ROUTER_AS}") for line in configuration(cluster)]
        with frr_router(cluster, lines) as router:
            scopes = {"all": scope}
            await deliver(node, planned(node, node.name, peers={"tor": tor}, scopes=scopes))
            await until(lambda: bool(router.paths("198.18.0.0/24")))
            (path,) = router.paths("198.18.0.0/24")
            assert path["locPrf"] == 150
            assert router.paths(f"{VIP}/32") == [], "the address itself is not announced"
            scopes = {"all": replace(scope, local_pref=50)}
            await deliver(node, planned(node, node.name, peers={"tor": tor}, scopes=scopes))
            await until(lambda: [p["locPrf"] for p in router.paths("198.18.0.0/24")] == [50])

    run(make(1), body)
