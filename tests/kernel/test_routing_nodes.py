"""Routing between node namespaces on one bridge: pods by the real ADD, real packets, switches under traffic."""

import json
import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.healing import drift
from tests.kernel.routing_nodes import (
    ECHO_SERVER,
    SOURCE_REPLY_SERVER,
    Cluster,
    ClusterNode,
    Pod,
    Talk,
    connect,
    inside,
    sent_again,
    source_seen,
)

from podwire.kernel import netns
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.machine import OWNER
from podwire.routing.nodes import ClusterView, peer_of
from podwire.routing.segment import segment_mac
from podwire.routing.settings import RoutingSettings
from podwire.routing.tunnels import tunnel_mac

Make = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, segments: int = 1, families: str = "4") -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments, families))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


IN_GUEST = pytest.mark.uml
TUNNELS = [
    "vxlan",
    "wireguard",
    "udp",
    "ovs",
    pytest.param("ipip", marks=IN_GUEST),
    pytest.param("geneve", marks=IN_GUEST),
]
SEGMENTS = ["bridge", pytest.param("vlan", marks=IN_GUEST)]
IPVLAN = pytest.param("ipvlan", marks=IN_GUEST)
BACKENDS = ["hostgw", "bgp", "macvlan", IPVLAN, *SEGMENTS, *TUNNELS]
DEVICES = {
    "vxlan": "podwire-vxlan",
    "ipip": "podwire-ipip",
    "geneve": "podwire-geneve",
    "wireguard": "podwire-wg",
    "udp": "podwire-udp",
    "ovs": "podwire-ovs",
    "bridge": "podwire-bridge",
    "vlan": "podwire-vlan",
}
GUARDS = {"vxlan": "podwire-routing", "ipip": "podwire-routing-ipip", "geneve": "podwire-routing-geneve"}
GUARDS |= {"udp": "podwire-routing-udp", "ovs": "podwire-routing-ovs"}
OVERHEADS = {"vxlan": (50, 70), "geneve": (50, 70), "ipip": (20, 20), "wireguard": (60, 80), "udp": (36, 56)}
OVERHEADS |= {"ovs": (50, 70)}
OVERHEADS |= dict.fromkeys(("hostgw", "bgp", "bridge", "vlan", "macvlan", "ipvlan"), (0, 0))
"""Bytes that a packet grows by when the node's first address is IPv4, IPv6."""


def has_nftables(cluster: Cluster) -> bool:
    """Whether this kernel has nftables: that of the guest has not, so nothing is masqueraded and guarded there."""
    return not cluster.all[0].machine.lacks("nftables")


@pytest.mark.parametrize("backend", BACKENDS)
def test_pods_reach_pods_nodes_and_outside_hosts(make: Make, backend: str) -> None:
    cluster = make(3)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
        assert source_seen(cluster.all[1].place, b.address) == cluster.all[1].ip
        from_node = source_seen(cluster.all[0].place, b.address)
        assert from_node == ("10.244.1.1" if backend in DEVICES else cluster.all[0].ip)
        assert source_seen(cluster.all[2].place, b.address)
    world = Pod(cluster.fabric, "192.0.2.1")
    node = Pod(cluster.all[1].place, cluster.all[1].ip)
    if has_nftables(cluster):
        with world.running(SOURCE_REPLY_SERVER):
            assert source_seen(a.place, world.address) == cluster.all[0].ip
    with node.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, node.address) == a.address


@pytest.mark.parametrize("families", ["46", "64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_pods_reach_each_other_in_both_families(make: Make, backend: str, families: str) -> None:
    cluster = make(2, families=families)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    assert cluster.all[0].mtu == 1500 - OVERHEADS[backend][families == "64"]
    with b.running(SOURCE_REPLY_SERVER):
        for ours, theirs in ((a.address, b.address), (a.address6, b.address6)):
            assert source_seen(a.place, theirs) == ours
            assert source_seen(cluster.all[0].place, theirs)
            assert source_seen(cluster.all[1].place, theirs)


@pytest.mark.parametrize("backend", TUNNELS)
def test_a_router_between_nodes_needs_no_pod_routes(make: Make, backend: str) -> None:
    cluster = make(3, segments=2)
    far, near = cluster.all[0], cluster.all[2]
    pods = {node.name: node.pod(f"p{node.number}") for node in cluster.all}
    for direct in (False, True)[: 1 if backend == "wireguard" else 2]:
        cluster.configure(RoutingSettings(backend=backend, direct_routing=direct))
        cluster.settle()
        routes = far.shows("ip", "route")
        assert ("10.244.3.0/24 via 10.89.1.13 dev eth0" in routes) == direct
        assert any(line.startswith("10.244.2.0/24 ") and DEVICES[backend] in line for line in routes.splitlines())
        for node in cluster.all:
            with pods[node.name].running(SOURCE_REPLY_SERVER):
                for other in cluster.all:
                    if other is not node:
                        assert source_seen(pods[other.name].place, pods[node.name].address) == pods[other.name].address
                        assert source_seen(other.place, pods[node.name].address)
    host = Pod(cluster.all[1].place, cluster.all[1].ip)
    if has_nftables(cluster):
        with host.running(SOURCE_REPLY_SERVER):
            assert source_seen(pods[near.name].place, host.address) == near.ip
    cluster.configure(RoutingSettings(backend="hostgw"))
    for item in cluster.all:
        item.router.reconcile()
    assert far.router.plan is not None
    assert far.router.plan.senders == {"node-2": backend, "node-3": "hostgw"}
    cluster.settle()
    assert [problem.peer for problem in far.router.plan.problems] == ["node-2"]


def test_without_routing_the_routes_of_the_network_are_used(make: Make) -> None:
    cluster = make(2)
    cluster.configure(RoutingSettings(backend="vxlan"))
    cluster.settle()
    for node in cluster.all:
        inside(cluster.fabric, "ip", "route", "add", node.cidr, "via", node.ip)
    cluster.configure(RoutingSettings(backend="none"))
    cluster.settle()
    first, second = cluster.all
    assert "podwire" not in first.shows("ip", "link") and "10.244.2.0/24" not in first.shows("ip", "route")
    assert first.mtu == 1500 and first.router.plan is not None
    assert first.router.plan.senders == {"node-2": "none"}
    a, b = first.pod("a"), second.pod("b")
    world = Pod(cluster.fabric, "192.0.2.1")
    with b.running(SOURCE_REPLY_SERVER), world.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
        assert source_seen(a.place, world.address) == first.ip


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_run_changes_nothing(make: Make, backend: str) -> None:
    cluster = make(2)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    node = cluster.all[0]
    command = ["nsenter", f"--net={node.place}", "ip", "monitor", "link", "address", "route", "neigh"]
    watched = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(0.1)
    for _ in range(3):
        node.reconcile()
    time.sleep(0.1)
    watched.kill()
    output, _ = watched.communicate()
    assert output == ""


@pytest.mark.parametrize("backend", TUNNELS)
def test_removed_routing_objects_are_restored(make: Make, backend: str) -> None:
    cluster = make(2)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    device, guard = DEVICES[backend], GUARDS.get(backend, "podwire-masquerade")
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    damages = [
        ("ip", "link", "del", device),
        ("ip", "route", "del", "10.244.2.0/24"),
        ("ip", "neigh", "flush", "dev", device, "nud", "permanent"),
        ("bridge", "fdb", "del", tunnel_mac("node-2"), "dev", device, "self"),
        ("ip", "address", "flush", "dev", device),
        ("ip", "link", "set", device, "down"),
        ("nft", "delete", "table", "inet", "podwire-masquerade"),
        ("nft", "delete", "table", "inet", guard),
    ]
    absent = ("bridge",) * (backend != "vxlan") + ("nft",) * (not has_nftables(cluster))
    damages = [damage for damage in damages if damage[0] not in absent]
    with b.running(SOURCE_REPLY_SERVER):
        for damage in damages:
            inside(cluster.all[0].place, *damage)
            cluster.all[0].reconcile()
            assert source_seen(a.place, b.address) == a.address, damage
    if has_nftables(cluster):
        assert {"podwire-masquerade", guard} <= set(cluster.all[0].shows("nft", "list", "tables").split())


def announced_changes(place: Path) -> socket.socket:
    """A socket that hears of neighbours, forwarding entries and IPv4 routes of a namespace."""
    with netns.inside(place):
        heard = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    heard.bind((0, 1 << 2 | 1 << 6))  # RTMGRP_NEIGH, RTMGRP_IPV4_ROUTE
    heard.setblocking(False)
    return heard


def heard_changes(heard: socket.socket, device: int) -> list[str]:
    """The changes in the order of the kernel, neighbours of one device alone: ``+`` or ``-`` and the kind of object."""
    kinds = {
        (28, 2): "+neighbour",
        (29, 2): "-neighbour",
        (28, 7): "+fdb",
        (29, 7): "-fdb",
        (24, 2): "+route",
        (25, 2): "-route",
    }
    changes: list[str] = []
    with suppress(BlockingIOError):
        while data := heard.recv(65536):
            while data:
                size, kind = struct.unpack_from("=IH", data)
                index, state = struct.unpack_from("=iH", data, 20)
                # A neighbour that is deleted is told as one that failed, too.
                counts = kind in (24, 25) or (index == device and (kind == 29 or state & 0x80))  # NUD_PERMANENT
                changes += [kinds[kind, data[16]]] if counts and (kind, data[16]) in kinds else []
                data = data[size + 3 & ~3 :]
    return changes


def test_the_route_to_a_peer_comes_last_and_goes_first(make: Make) -> None:
    cluster = make(3)
    first, _, last = cluster.all
    cluster.configure(RoutingSettings(backend="vxlan"))
    cluster.settle()
    device = json.loads(first.shows("ip", "-j", "link", "show", "podwire-vxlan"))[0]["ifindex"]
    for following in (True, False):
        with announced_changes(first.place) as heard:
            del cluster.nodes[last.name]
            first.router.reconcile(full=not following)
            assert heard_changes(heard, device) == ["-route", "-fdb", "-neighbour"], "nothing else changes"
            cluster.nodes[last.name] = last.object(last.router.plan.facts.annotations() if last.router.plan else None)
            first.router.reconcile(full=not following)
            assert heard_changes(heard, device) == ["+neighbour", "+fdb", "+route"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_removed_node_leaves_no_objects(make: Make, backend: str) -> None:
    cluster = make(3)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    stays = cluster.all[0]
    assert "10.244.3.0/24" in stays.shows("ip", "route")
    del cluster.nodes["node-3"]
    stays.reconcile()
    everything = (
        stays.shows("ip", "route")
        + stays.shows("ip", "neigh", "show", "nud", "permanent")
        + stays.shows("bridge", "fdb")
    )
    assert "10.244.3." not in everything and "10.89.0.13" not in everything
    assert "10.244.2.0/24" in everything


def moved(node: ClusterNode) -> Node:
    """The Node object of a node that was made anew: other addresses, another pod CIDR, another hardware address."""
    old = node.cluster.nodes[node.name]
    facts = old.metadata.annotations["podwire.io/routing-facts"].replace(tunnel_mac(node.name), "02:00:00:00:00:77")
    facts = facts.replace(segment_mac(node.name, [ip_address(node.ip)]), "02:00:00:00:00:77")
    cidr = f"10.244.{40 + node.number}.0/24"
    address = NodeAddress(type="InternalIP", address=f"10.89.0.{90 + node.number}")
    return Node(
        metadata=replace(old.metadata, annotations={**old.metadata.annotations, "podwire.io/routing-facts": facts}),
        spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,)),
        status=NodeStatus(addresses=(address,)),
    )


@pytest.mark.parametrize("down", [False, True], ids=["agent up", "agent down"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_changed_and_deleted_nodes_leave_nothing_stale(make: Make, backend: str, down: bool) -> None:
    cluster = make(3)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    stays, second, third = cluster.all
    old = [second.cidr[:-4], second.ip, tunnel_mac("node-2"), third.cidr[:-4], third.ip, tunnel_mac("node-3")]
    old += [segment_mac(node.name, [ip_address(node.ip)]) for node in (second, third)]
    if backend == "ovs":
        old.remove(tunnel_mac("node-2"))  # Peers do not learn it: it follows from the name, which stays.
    if down:
        stays.machine.close()
    cluster.nodes["node-2"] = moved(second)
    del cluster.nodes["node-3"]
    if down:
        stays.start_agent()
        stays.router.configure(RoutingSettings(backend=backend))
    stays.reconcile()
    commands = ["ip route", "ip neigh show nud permanent"]
    commands += ["bridge fdb"] * (backend in ("vxlan", "bridge", "vlan")) + ["nft list ruleset"] * has_nftables(cluster)
    everything = "".join(stays.shows(*command.split()) for command in commands)
    assert [text for text in old if re.search(rf"\b{re.escape(text)}\b", everything)] == []
    assert "10.244.42.0/24" in everything
    assert drift(stays) == []
    stated = str(stays.router.applied.share(OWNER))
    assert second.ip not in stated
    assert "10.89.0.92" in stated or "02:00:00:00:00:77" in stated


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vxlan", "hostgw"),
        ("hostgw", "vxlan"),
        ("vxlan", "bgp"),
        ("bgp", "hostgw"),
        ("vxlan", "wireguard"),
        ("wireguard", "vxlan"),
        ("vxlan", "udp"),
        ("udp", "hostgw"),
        ("vxlan", "ovs"),
        ("ovs", "hostgw"),
        ("hostgw", "bridge"),
        ("bridge", "vxlan"),
        ("hostgw", "macvlan"),
        ("macvlan", "vxlan"),
        pytest.param("hostgw", "ipip", marks=IN_GUEST),
        pytest.param("ipip", "geneve", marks=IN_GUEST),
        pytest.param("geneve", "hostgw", marks=IN_GUEST),
        pytest.param("bridge", "vlan", marks=IN_GUEST),
        pytest.param("hostgw", "ipvlan", marks=IN_GUEST),
        pytest.param("macvlan", "ipvlan", marks=IN_GUEST),
        pytest.param("ipvlan", "vxlan", marks=IN_GUEST),
        pytest.param("bridge", "ipvlan", marks=IN_GUEST),
    ],
)
def test_a_switch_node_by_node_breaks_no_connection(make: Make, before: str, after: str) -> None:
    cluster = make(3)
    cluster.need(after)
    cluster.configure(RoutingSettings(backend=before))
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    with pods[0].running(ECHO_SERVER), pods[1].running(ECHO_SERVER), pods[2].running(ECHO_SERVER):
        talks = [Talk(item, other) for item in pods for other in pods if item is not other]
        for node in cluster.all:
            node.router.configure(RoutingSettings(backend=after))
            for changed in cluster.all:
                changed.reconcile()
            time.sleep(0.15)
            for pod in pods:
                for other in pods:
                    if pod is not other:
                        with connect(pod.place, other.address, 7) as new:
                            assert sent_again(new) == 0, "the first packet passes"
        cluster.settle()
        again = max(talk.end() for talk in talks)
        smaller = OVERHEADS[after] > OVERHEADS[before]
        assert again < (20 if smaller else 1), "none is lost but what was too large for the tunnel"
    for node in cluster.all:
        links, routes = node.shows("ip", "-br", "link"), node.shows("ip", "route")
        assert [name for name, device in DEVICES.items() if device in links] == [after] * (after in DEVICES)
        assert re.findall(r"^10\.244\.\d+\.0/24 .*dev (\S+)", routes, re.M) == [DEVICES.get(after, "eth0")] * 2
        if has_nftables(cluster):
            tables = node.shows("nft", "list", "tables").split()
            assert [name for name, guard in GUARDS.items() if guard in tables] == [after] * (after in GUARDS)
        mtu = json.loads(inside(pods[0].place, "ip", "-j", "link", "show", "eth0"))[0]["mtu"]
        assert mtu == 1500 - OVERHEADS[after][0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_traffic_outlives_the_agent(make: Make, backend: str) -> None:
    cluster = make(2)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    with b.running(ECHO_SERVER):
        talk = Talk(a, b)
        for node in cluster.all:
            node.machine.close()
            before = node.children()
            node.start_agent()
            node.router.configure(RoutingSettings(backend=backend))
            node.reconcile()
            assert node.children() == before
            time.sleep(0.1)
        assert talk.end() == 0, "no segment is lost"


@pytest.mark.parametrize("mtu", [1400, 9000])
def test_pods_use_the_full_mtu_of_the_underlay(make: Make, mtu: int) -> None:
    cluster = make(2)
    for node in cluster.all:
        inside(cluster.fabric, "ip", "link", "set", f"n{node.number}", "mtu", str(mtu))
        inside(node.place, "ip", "link", "set", "eth0", "mtu", str(mtu))
    inside(cluster.fabric, "ip", "link", "set", "br0", "mtu", str(mtu))
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    with netns.inside(a.place):
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(b.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe, sink:
        sink.bind(("", 9))
        sink.settimeout(20)
        probe.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        largest = mtu - 50 - 28
        probe.sendto(b"x" * largest, (b.address, 9))
        assert len(sink.recv(65536)) == largest
        with pytest.raises(OSError):
            probe.sendto(b"x" * (largest + 1), (b.address, 9))


def injected(place: Path, to: str, protocol: int, port: int, payload: bytes) -> None:
    """Sends one packet that a node would decapsulate."""
    with netns.inside(place):
        kind = socket.SOCK_DGRAM if protocol == socket.IPPROTO_UDP else socket.SOCK_RAW
        sender = socket.socket(socket.AF_INET, kind, protocol)
    with sender:
        sender.sendto(payload, (to, port))


def test_vxlan_from_hosts_that_are_not_nodes_is_dropped(make: Make) -> None:
    cluster = make(2)
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    inner = bytes.fromhex("0800000000100000")  # VXLAN header, VNI 4096
    for place in (cluster.fabric, a.place):
        injected(place, cluster.all[1].ip, socket.IPPROTO_UDP, 8472, inner + b"\0" * 60)
    time.sleep(0.05)
    shown = json.loads(cluster.all[1].shows("ip", "-j", "-s", "link", "show", "podwire-vxlan"))[0]
    assert shown["stats64"]["rx"]["packets"] + shown["stats64"]["rx"]["errors"] == 0
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address


@pytest.mark.parametrize("backend", ["ipip", "geneve"])
def test_a_guard_takes_outer_packets_from_nodes_only(make: Make, backend: str) -> None:
    """The guard alone, with a socket in place of the device, which this machine's kernel may lack."""
    cluster = make(2)
    cluster.settle()
    first, second = cluster.all
    a = first.pod("a")
    me, _ = second.router.own.look()
    assert me is not None
    cidrs = (ip_network("10.244.0.0/16"),)
    guard = RoutingSettings().load()[backend].plan(me, (), ClusterView((peer_of(first.object()),), cidrs)).values
    assert second.machine.hold_values(guard) == []
    udp = backend == "geneve"
    protocol, port = (socket.IPPROTO_UDP, 6081) if udp else (socket.IPPROTO_IPIP, 0)
    with netns.inside(second.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_RAW, protocol)
    with sink:
        sink.settimeout(20)
        sink.bind(("", port))
        for place, payload in ((cluster.fabric, b"outside"), (a.place, b"pod"), (first.place, b"node")):
            injected(place, second.ip, protocol, port, payload)
        assert sink.recv(100).endswith(b"node")
    assert "udp dport 6081" in str(guard[0]) if udp else "meta l4proto 41" in str(guard[0])
