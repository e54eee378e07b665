"""The ways between nodes that ``podwire why`` tells: as the kernel routes packets, and where an entry is missing."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.kernel.cni_node import ping
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, source_seen

from podwire.cluster.world import World
from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod, PodIP, PodSpec, PodStatus
from podwire.proxy.servicemap import NodeFacts
from podwire.routing.paths import lookup
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings
from podwire.runtime.clock import SystemClock
from podwire.why import answer_text
from podwire.why.answer import Answer, NodeRoute
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.objects import Collection
from podwire.why.question import TypedQuestion

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Make = Callable[..., Cluster]
NODES_ROUTES = ("vxlan", "hostgw", "bgp", "wireguard", "udp", "bridge", "ovs")
OUTER_ROUTES = ("none", "cloudroutes")
"""Backends with which the network between the nodes routes."""
IN_GUEST = [pytest.param(backend, marks=pytest.mark.uml) for backend in ("ipip", "geneve", "vlan")]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, segments: int = 1, families: str = "46") -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments, families))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


def asked(cluster: Cluster, settings: RoutingSettings, ends: tuple[str, str]) -> Answer:
    """The answer about a connection from pod ``a`` on the first node to pod ``b`` on the last one."""
    first, last = cluster.all[0], cluster.all[-1]
    pods = [
        Pod(
            metadata=ObjectMeta(name=name, namespace="shop"),
            spec=PodSpec(node_name=node.name),
            status=PodStatus(phase="Running", pod_ip=ip, pod_ips=(PodIP(ip=ip),)),
        )
        for name, node, ip in (("a", first, ends[0]), ("b", last, ends[1]))
    ]
    by_name = {node.name: node for node in cluster.all}

    def access(name: str) -> NodeAccess:
        return NodeAccess(
            services=NodeFacts(name=name, pod_cidrs=("10.244.0.0/16", "fd00::/48")),
            cluster_cidrs=("10.244.0.0/16",),
            routing=settings,
            routing_dir=by_name[name].router.own.run_dir,
            parts=frozenset(("cni", "routing")),
            netns=by_name[name].place,
        )

    world = World(nodes=tuple(cluster.nodes.values()), pods=tuple(pods))
    cluster_access = ClusterAccess(objects=Collection(world=world), nodes=NodeKernels(access, SystemClock()))
    return asyncio.run(explain(TypedQuestion(source="shop/a", target="shop/b", port="8"), cluster_access))


def kernel_route(node: ClusterNode, address: str) -> tuple[str, str]:
    """The device and the gateway of the route that the kernel chooses."""
    chosen = json.loads(node.shows("ip", "-j", "route", "get", address))[0]
    gateway = chosen.get("gateway") or chosen.get("via", {}).get("host", "")
    return str(chosen["dev"]), str(ip_address(gateway)) if gateway else ""


def told_route(route: NodeRoute) -> tuple[str, str]:
    fields = route.route.split()
    return route.device, str(ip_address(fields[fields.index("via") + 1])) if "via" in fields else ""


@pytest.mark.parametrize("backend", [*NODES_ROUTES, *OUTER_ROUTES, *IN_GUEST])
def test_explained_route_is_the_route_of_the_kernel(make: Make, backend: str) -> None:
    outer = backend in OUTER_ROUTES
    cluster, settings = make(2, families="4" if outer else "46"), RoutingSettings(backend=backend)
    cluster.configure(settings)
    cluster.settle()
    first, last = cluster.all
    for node in cluster.all if outer else ():
        cluster_routes(cluster, node)
    a, b = first.pod("a"), last.pod("b")
    for ends in ((a.address, b.address), *(() if outer else ((a.address6, b.address6),))):
        answer = asked(cluster, settings, ends)
        there, back = answer.routes
        assert (there.direction, there.node, there.peer, there.state) == ("request", first.name, last.name, "held")
        assert (back.direction, back.node, back.peer) == ("reply", last.name, first.name)
        for route, node, end in ((there, first, ends[1]), (back, last, ends[0])):
            assert (route.backend, route.missing, route.drift) == (backend, (), ())
            assert told_route(route) == kernel_route(node, end)
            assert route.mtu == first.mtu
        assert answer.outcome == "untouched"
        if there.tunnel is None:
            assert backend in ("hostgw", "bgp", "bridge", "vlan", *OUTER_ROUTES)
        else:
            assert (there.tunnel.source, there.tunnel.destination) == (first.ip, last.ip)
            assert (there.tunnel.device, there.tunnel.gateway) == kernel_route(first, last.ip)

        assert ping(a.place, ends[1], patience_s=20, size=there.mtu), "a packet of the MTU passes whole"
        assert not ping(a.place, ends[1], size=there.mtu + 1)


def cluster_routes(cluster: Cluster, node: ClusterNode) -> None:
    """Gives the network between the nodes the route to the pods of a node."""
    subprocess.run(["nsenter", f"--net={cluster.fabric}", "ip", "route", "add", node.cidr, "via", node.ip], check=True)


def test_packets_of_every_backend_are_explained_here() -> None:
    guest = [str(parameter.values[0]) for parameter in IN_GUEST]
    assert sorted([*NODES_ROUTES, *OUTER_ROUTES, *guest, "macvlan", "ipvlan"]) == sorted(BACKENDS)


@pytest.mark.parametrize("backend", ["macvlan", pytest.param("ipvlan", marks=pytest.mark.uml)])
def test_packets_by_legs_are_explained_as_pods_send_them(make: Make, backend: str) -> None:
    cluster, settings = make(2), RoutingSettings(backend=backend)
    cluster.configure(settings)
    cluster.settle()
    first, last = cluster.all
    a, b = first.pod("a"), last.pod("b")
    answer = asked(cluster, settings, (a.address, b.address))
    for route, pod, end in zip(answer.routes, (a, b), (b.address, a.address), strict=True):
        with netns.inside(pod.place):
            (chosen,) = json.loads(subprocess.check_output(["ip", "-j", "route", "get", end]))
            (leg,) = json.loads(subprocess.check_output(["ip", "-j", "link", "show", chosen["dev"]]))
        assert (route.backend, route.device, route.mtu) == (backend, chosen["dev"], leg["mtu"])
        assert (route.missing, route.drift, route.tunnel) == ((), (), None)


def test_looked_up_routes_are_those_that_the_kernel_chooses(make: Make) -> None:
    cluster = make(3, segments=2)
    cluster.settle()
    node = cluster.all[0]
    pod = node.pod("a")
    node.shows("ip", "route", "add", "192.0.2.0/24", "via", "10.89.1.1", "metric", "7")
    node.shows("ip", "route", "add", "192.0.2.0/24", "dev", "podwire-vxlan", "metric", "9")
    node.shows("ip", "route", "add", "192.0.2.128/25", "dev", "podwire-vxlan")
    with Netlink(node.place) as netlink:
        state = network.read(netlink)
    addresses = [pod.address, "10.244.2.9", "10.244.3.200", "10.89.1.12", "198.51.100.1", "192.0.2.1", "192.0.2.200"]
    addresses += [pod.address6, "fd00:0:0:2::7", "fd00:0:0:3::7", "fd89::12"]
    for address in addresses:
        chosen = lookup(state, ip_address(address))
        assert chosen is not None
        assert (chosen.link, chosen.via) == kernel_route(node, address), address


DAMAGES = {
    "route": (("ip", "route", "del", "10.244.2.0/24"), "no route to 10.244.2.0/24 by podwire-vxlan", "+ route 10.244"),
    "neighbour": (
        ("ip", "neigh", "del", "10.244.2.1", "dev", "podwire-vxlan"),
        "no neighbour entry for 10.244.2.1 on podwire-vxlan",
        "+ neighbour 10.244.2.1",
    ),
    "fdb": (("bridge", "fdb", "del", "MAC", "dev", "podwire-vxlan"), "no forwarding entry for MAC", "+ fdb MAC"),
    "misled": (
        ("bridge", "fdb", "replace", "MAC", "dev", "podwire-vxlan", "dst", "10.89.0.99"),
        "leads to 10.89.0.99, and node-2 has 10.89.0.12",
        "- fdb MAC dev podwire-vxlan dst 10.89.0.99",
    ),
    "device": (("ip", "link", "set", "podwire-vxlan", "down"), "no route to 10.244.2.0/24", "- link podwire-vxlan"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_missing_entry_is_reported_and_packets_are_lost(make: Make, damage: str) -> None:
    cluster, settings = make(2, families="4"), RoutingSettings()
    cluster.settle()
    first, last = cluster.all
    a, b = first.pod("a"), last.pod("b")
    ends = (a.address, b.address)
    (entry,) = (line for line in first.shows("bridge", "fdb", "show", "dev", "podwire-vxlan").splitlines())
    mac = entry.split()[0]
    command, problem, line = DAMAGES[damage]
    first.shows(*(mac if word == "MAC" else word for word in command))
    answer = asked(cluster, settings, ends)
    there, back = answer.routes
    assert any(problem.replace("MAC", mac) in text for text in there.missing), there.missing
    assert back.missing == ()
    assert answer.outcome == "dropped"
    text = list(answer_text.render(answer))
    assert any(item.startswith("outcome   DROPPED between node-1 and node-2: ") for item in text), text
    assert any(line.replace("MAC", mac) in item for item in text), text
    assert not ping(a.place, b.address)
    first.reconcile()
    assert [route.missing for route in asked(cluster, settings, ends).routes] == [(), ()]
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
