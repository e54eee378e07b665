"""The MTU of pods, with real packets: by underlay, family and peer, and changed while pods run."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, ClusterNode, Pod, Talk, connect, inside

from podwire.kernel import netns
from podwire.routing.plan import Plan
from podwire.routing.settings import RoutingSettings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Make = Callable[..., Cluster]
HEADERS = {4: 20, 6: 40}
_UDP, _TCP_WITH_TIMESTAMPS = 8, 32
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DO = 10, 23, 2  # linux/in.h, linux/in6.h
IP_MTU = 14


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, families: str = "4", segments: int = 1) -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments, families))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


def set_underlay(cluster: Cluster, mtu: int, *, nodes: bool = True) -> None:
    """Sets the MTU of the fabric, and of the nodes' own devices."""
    for node in cluster.all:
        inside(cluster.fabric, "ip", "link", "set", f"n{node.number}", "mtu", str(mtu))
        if nodes:
            inside(node.place, "ip", "link", "set", "eth0", "mtu", str(mtu))
    inside(cluster.fabric, "ip", "link", "set", "br0", "mtu", str(mtu))


def sockets(client: Path, server: Path, version: int) -> tuple[socket.socket, socket.socket]:
    """A sender that may not fragment, and a receiver on port 9."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with netns.inside(client):
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with netns.inside(server):
        sink = socket.socket(family, socket.SOCK_DGRAM)
    option = (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER) if version == 6 else (socket.IPPROTO_IP, IP_MTU_DISCOVER)
    sender.setsockopt(*option, PMTUDISC_DO)
    sink.bind(("", 9))
    sink.settimeout(20)
    return sender, sink


def check_datagrams(a: Pod, b: Pod, version: int, mtu: int) -> None:
    """The largest datagram arrives whole, a larger one is refused at once."""
    target = b.address6 if version == 6 else b.address
    sender, sink = sockets(a.place, b.place, version)
    with sender, sink:
        largest = mtu - HEADERS[version] - _UDP
        sender.sendto(b"x" * largest, (target, 9))
        assert len(sink.recv(65536)) == largest
        with pytest.raises(OSError, match="too long"):
            sender.sendto(b"x" * (largest + 1), (target, 9))


def check_stream(a: Pod, b: Pod, version: int, mtu: int) -> None:
    """A stream takes segments that fill the MTU."""
    with connect(a.place, b.address6 if version == 6 else b.address, 7) as item:
        assert item.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) == mtu - HEADERS[version] - _TCP_WITH_TIMESTAMPS
        item.sendall(b"x" * 200_000)
        remaining = 200_000
        while remaining:
            remaining -= len(item.recv(remaining))


@pytest.mark.parametrize("underlay", [1500, 9000, 1400])
@pytest.mark.parametrize(
    ("backend", "families", "overhead"), [("vxlan", "46", 50), ("vxlan", "64", 70), ("hostgw", "46", 0)]
)
def test_the_largest_packets_pass_whole(make: Make, backend: str, families: str, overhead: int, underlay: int) -> None:
    cluster = make(2, families)
    set_underlay(cluster, underlay)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    with b.running(ECHO_SERVER):
        for version in (4, 6):
            check_datagrams(a, b, version, underlay - overhead)
            check_stream(a, b, version, underlay - overhead)


def of_pod(pod: Pod, family: str = "-4") -> tuple[int, int]:
    """The MTU of a pod's device and of its default route."""
    device = json.loads(inside(pod.place, "ip", "-j", "link", "show", "eth0"))[0]["mtu"]
    route = json.loads(inside(pod.place, "ip", "-j", family, "route", "show", "default"))[0]
    return device, next(metrics["mtu"] for metrics in route["metrics"] if "mtu" in metrics)


def host_end(node: ClusterNode) -> int:
    links = json.loads(node.shows("ip", "-j", "link", "show", "type", "veth"))
    return int(next(link["mtu"] for link in links if link["ifname"] != "eth0"))


def test_pods_follow_the_underlay_without_a_restart(make: Make) -> None:
    """The kernel's notification alone starts the change, and a connection goes on.

    Not raised after it was lowered: a packet that arrives before the other node has raised its pods makes the sender
    remember the small size for ten minutes (net.ipv4.route.mtu_expires).
    """
    cluster = make(2)
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")

    async def announce(node: ClusterNode, plan: Plan) -> bool:
        node.mtus = dict(plan.pod_mtus)
        assert not node.repair.node_changed()
        cluster.nodes[node.name] = node.object(plan.facts.annotations())
        for other in cluster.all:
            other.router.changed()
        return True

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(node.router.run(partial(announce, node))) for node in cluster.all]
            for underlay in (9000, 1400, 1300):
                await asyncio.to_thread(set_underlay, cluster, underlay)
                deadline = time.monotonic() + 30
                while {of_pod(a), of_pod(b)} != {(underlay - 50, underlay - 50)}:
                    assert time.monotonic() < deadline, (underlay, of_pod(a), of_pod(b))
                    await asyncio.sleep(0.05)
                assert [host_end(node) for node in cluster.all] == [underlay - 50] * 2
                await asyncio.to_thread(check_datagrams, a, b, 4, underlay - 50)
            for task in tasks:
                task.cancel()

    with b.running(ECHO_SERVER):
        talk = Talk(a, b)
        try:
            asyncio.run(body())
        finally:
            talk.end()


def test_pods_of_jumbo_nodes_reach_a_node_that_has_none(make: Make) -> None:
    cluster = make(3)
    set_underlay(cluster, 9000)
    inside(cluster.all[2].place, "ip", "link", "set", "eth0", "mtu", "1500")
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    routes = json.loads(cluster.all[0].shows("ip", "-j", "route"))
    assert [route["metrics"] for route in routes if route["dst"] == "10.244.3.0/24"] == [[{"mtu": 1450}]]
    check_datagrams(pods[0], pods[2], 4, 1450)
    inside(cluster.all[2].place, "ip", "link", "set", "eth0", "mtu", "9000")
    cluster.settle()
    check_datagrams(pods[0], pods[2], 4, 8950)


def test_ipv6_pods_pass_an_underlay_too_narrow_for_ipv6(make: Make) -> None:
    cluster = make(2, "46")
    for node in cluster.all:
        inside(node.place, "ip", "link", "set", "eth0", "mtu", "1300")
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    assert (of_pod(a), of_pod(a, "-6")) == ((1280, 1250), (1280, 1280))
    check_datagrams(a, b, 4, 1250)
    check_datagrams(a, b, 6, 1280)


def test_a_sender_outside_learns_the_mtu_of_pods_by_icmp(make: Make) -> None:
    """The node behind the pod answers a packet that does not fit with the size that does."""
    cluster = make(2)
    cluster.settle()
    for node in cluster.all:
        node.router.configure(replace(RoutingSettings(), mtu=1300))
    cluster.settle()
    b = cluster.all[1].pod("b")
    inside(cluster.fabric, "ip", "route", "add", "10.244.2.0/24", "via", cluster.all[1].ip)
    sender, sink = sockets(cluster.fabric, b.place, 4)
    with sender, sink:
        sender.connect((b.address, 9))
        sender.send(b"x" * 1400)
        with pytest.raises(OSError, match="too long"):
            for _ in range(100):
                sender.send(b"x" * 1400)
                time.sleep(0.01)
        assert sender.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1300
        sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # of another answer
        sender.send(b"x" * (1300 - 28))
        assert len(sink.recv(2000)) == 1300 - 28
