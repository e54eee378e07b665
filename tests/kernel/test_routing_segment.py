"""Backends with a layer 2 segment between nodes: who may send into it, uplinks, repair, what is left behind."""

import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import (
    ECHO_SERVER,
    SOURCE_REPLY_SERVER,
    Cluster,
    ClusterNode,
    Pod,
    Talk,
    inside,
    ip_batch,
    source_seen,
)

from podwire.kernel import netns, sysctl
from podwire.routing.backends.bridge.backend import BridgeOptions, BridgeSection
from podwire.routing.backends.vlan.options import VlanOptions, VlanSection
from podwire.routing.segment import segment_mac
from podwire.routing.settings import RoutingSettings

Make = Callable[..., Cluster]
IN_GUEST = pytest.mark.uml
SEGMENTS = ["bridge", pytest.param("vlan", marks=IN_GUEST)]
PORTS = {"bridge": "podwire-br-port", "vlan": "podwire-vlan-up"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int = 2, backend: str = "bridge", uplink: str = "", families: str = "4") -> Cluster:
        cluster = Cluster(tmp_path, count, families=families)
        clusters.append(cluster)
        for node in cluster.all if uplink else ():
            ip_batch(
                cluster.fabric,
                f"link add m{node.number} up type veth peer name {uplink} address {_mac(node)} netns {node.place}",
            )
        cluster.configure(settings(backend, uplink))
        return cluster

    yield build
    for cluster in clusters:
        cluster.close()


def _mac(node: ClusterNode) -> str:
    return f"02:00:00:00:01:{node.number:02x}"


def settings(backend: str, uplink: str = "") -> RoutingSettings:
    options = {
        "bridge": BridgeOptions(bridge=BridgeSection(uplink=uplink)),
        "vlan": VlanOptions(vlan=VlanSection(id=7, uplink=uplink)),
    }
    return RoutingSettings(backend=backend, options=options)


def join(cluster: Cluster, bridge: str) -> None:
    """Connects the second cards of all nodes."""
    ports = [f"link set m{node.number} master {bridge}" for node in cluster.all]
    ip_batch(cluster.fabric, f"link add {bridge} up type bridge", *ports)


def mac_of(node: ClusterNode) -> str:
    return segment_mac(node.name, [ip_address(node.ip)])


def frame(source: str, target: str, to: str, payload: bytes, vid: int = 0) -> bytes:
    """An Ethernet frame with a UDP packet to port 9 of an address, from an address of no cluster; 0: without a tag."""
    udp = struct.pack("!HHHH", 9, 9, 8 + len(payload), 0) + payload
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, socket.inet_aton("198.51.100.7"), socket.inet_aton(to)
    )
    total = sum(struct.unpack("!10H", header))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    packet = header[:10] + struct.pack("!H", checksum) + header[12:] + udp
    tag = struct.pack("!HH", 0x8100, vid) if vid else b""
    return bytes.fromhex(target.replace(":", "") + source.replace(":", "")) + tag + b"\x08\0" + packet


@pytest.mark.parametrize("backend", SEGMENTS)
def test_frames_from_stations_that_are_no_nodes_are_dropped(make: Make, backend: str) -> None:
    cluster = make(backend=backend)
    vid = {"vlan": 7}.get(backend, 0)
    cluster.settle()
    first, second = cluster.all
    pod = second.pod("b")
    with netns.inside(pod.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(cluster.fabric):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sink, wire:
        sink.bind(("", 9))
        sink.settimeout(30)
        wire.bind(("br0", 0))
        wire.send(frame("02:00:00:00:00:99", mac_of(second), pod.address, b"outside", vid))
        for other in {0, 8} if vid else ():
            wire.send(frame(mac_of(first), mac_of(second), pod.address, b"another VLAN", other))
        wire.send(frame(mac_of(first), mac_of(second), pod.address, b"node", vid))
        assert sink.recv(100) == b"node", "the same frame from a node's hardware address passes, the other did not"
    del cluster.nodes["node-1"]
    second.reconcile()
    assert mac_of(first) not in second.shows("bridge", "fdb", "show", "dev", PORTS[backend])


@pytest.mark.parametrize("backend", SEGMENTS)
def test_removed_objects_of_the_segment_are_restored(make: Make, backend: str) -> None:
    cluster = make(backend=backend, families="46")
    cluster.settle()
    bridge, port = f"podwire-{backend}", PORTS[backend]
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    damages = [
        ("ip", "link", "del", bridge),
        ("ip", "link", "del", port),
        ("ip", "link", "set", port, "nomaster"),
        ("ip", "link", "set", port, "down"),
        ("ip", "link", "set", bridge, "down"),
        ("ip", "route", "del", "10.244.2.0/24"),
        ("ip", "-6", "route", "del", "fd00:0:0:2::/64"),
        ("ip", "neigh", "flush", "dev", bridge, "nud", "permanent"),
        ("ip", "address", "flush", "dev", bridge),
        ("bridge", "fdb", "del", segment_mac("node-2", [ip_address(second.ip)]), "dev", port, "master"),
        ("bridge", "link", "set", "dev", port, "locked", "off"),
    ]
    with b.running(SOURCE_REPLY_SERVER):
        for damage in damages:
            inside(first.place, *damage)
            first.reconcile()
            assert source_seen(a.place, b.address) == a.address, damage
            assert source_seen(a.place, b.address6) == a.address6, damage
            assert "locked on" in first.shows("bridge", "-d", "link", "show", "dev", port), damage


@pytest.mark.parametrize("backend", SEGMENTS)
def test_a_second_card_carries_the_packets_of_pods(make: Make, backend: str) -> None:
    cluster = make(backend=backend, uplink="eth1", families="46")
    join(cluster, "pods")
    for node in cluster.all:
        ip_batch(cluster.fabric, f"link set m{node.number} mtu 1400")
        ip_batch(node.place, "link set eth1 up mtu 1400")
    cluster.settle()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    inside(cluster.fabric, "ip", "link", "set", "br0", "down")
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
        assert source_seen(a.place, b.address6) == a.address6
    for family, extra, to in ((socket.AF_INET, 28, b.address), (socket.AF_INET6, 48, b.address6)):
        with netns.inside(a.place):
            probe = socket.socket(family, socket.SOCK_DGRAM)
        with netns.inside(b.place):
            sink = socket.socket(family, socket.SOCK_DGRAM)
        with probe, sink:
            sink.bind(("", 9))
            sink.settimeout(30)
            level, option = ((socket.IPPROTO_IP, 10), (socket.IPPROTO_IPV6, 23))[family == socket.AF_INET6]
            probe.setsockopt(level, option, 2)  # IP(V6)_MTU_DISCOVER, PMTUDISC_DO
            probe.sendto(b"x" * (1400 - extra), (to, 9))
            assert len(sink.recv(65536)) == 1400 - extra
            with pytest.raises(OSError):
                probe.sendto(b"x" * (1400 - extra + 1), (to, 9))


@pytest.mark.parametrize("backend", SEGMENTS)
def test_pods_follow_the_mtu_of_the_uplink(make: Make, backend: str) -> None:
    cluster = make(backend=backend)
    cluster.settle()
    node = cluster.all[0]
    pod = node.pod("a")
    ip_batch(node.place, "link set eth0 mtu 1300")
    node.reconcile()
    assert node.mtu == 1300
    assert "mtu 1300" in inside(pod.place, "ip", "link", "show", "eth0")
    assert "mtu 1300" in node.shows("ip", "link", "show", f"podwire-{backend}")


def test_an_uplink_of_another_bridge_is_refused_and_not_touched(make: Make) -> None:
    cluster = make(uplink="eth1")
    join(cluster, "pods")
    first, second = cluster.all
    for node in cluster.all:
        ip_batch(node.place, "link set eth1 up")
    ip_batch(first.place, "link add br9 up type bridge", "link set eth1 master br9")
    before = first.shows("ip", "-o", "link", "show", "eth1")
    cluster.settle()
    assert first.shows("ip", "-o", "link", "show", "eth1") == before
    assert "podwire" not in first.shows("ip", "link")
    assert "routing.bridge.uplink: eth1 of node node-1 is a port of br9; use br9" in first.router.applied.unreached
    assert "node-1 does not receive bridge yet" in second.router.applied.unreached
    ip_batch(first.place, "link set eth1 nomaster")
    cluster.settle()
    assert first.router.applied.unreached == second.router.applied.unreached == ""
    a, b = first.pod("a"), second.pod("b")
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address


@pytest.mark.parametrize("backend", SEGMENTS)
def test_the_uplink_keeps_everything_before_and_after(make: Make, backend: str) -> None:
    cluster = make(backend=backend)
    first, second = cluster.all
    shown = ("ip", "-o", "address", "show", "eth0"), ("ip", "route", "show", "dev", "eth0", "proto", "boot")
    before = [first.shows(*command) for command in shown]
    far, near = Pod(first.place, first.ip), Pod(second.place, second.ip)
    with near.running(ECHO_SERVER):
        talk = Talk(far, near)
        cluster.settle()
        during = [first.shows(*command) for command in shown]
        cluster.configure(RoutingSettings(backend="hostgw"))
        cluster.settle()
        assert talk.end() == 0, "connections of the nodes lose no segment"
    after = [first.shows(*command) for command in shown]
    assert before == during == after
    assert "podwire" not in first.shows("ip", "link")
    assert not re.search(r"10\.244\.2\.1\b", first.shows("ip", "neigh", "show", "nud", "permanent"))


@pytest.mark.uml
def test_the_vlan_of_another_program_is_not_touched(make: Make) -> None:
    cluster = make(backend="vlan")
    first, second = cluster.all
    ip_batch(first.place, "link add link eth0 name lan7 up type vlan id 7", "address add 203.0.113.1/24 dev lan7")
    shown = ("ip", "-o", "address", "show", "lan7")
    before = first.shows(*shown)
    for _ in range(2):
        first.router.reconcile()
        second.router.reconcile()
    assert "podwire-vlan-up" in first.router.problem and "File exists" in first.router.problem
    assert first.shows(*shown) == before
    inside(first.place, "ip", "link", "del", "lan7")
    cluster.settle()
    a, b = first.pod("a"), second.pod("b")
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address


@pytest.mark.parametrize("filtered", ["0", "1"])
def test_services_of_the_own_node_need_no_filtering_of_bridges(make: Make, filtered: str) -> None:
    cluster = make(2)
    if not Path("/proc/sys/net/bridge").exists():
        pytest.skip("the kernel has no br_netfilter")
    cluster.settle()
    first, second = cluster.all
    sysctl.write("net/bridge/bridge-nf-call-iptables", filtered, first.place)
    client, near, far = first.pod("client"), first.pod("near"), second.pod("far")
    for number, server in ((1, near), (2, far)):
        rule = f"ip daddr 10.96.0.{number} tcp dport 8 dnat to {server.address}"
        chain = f"chain c {{ type nat hook prerouting priority -100\n{rule}\n}}"
        command = ["nsenter", f"--net={first.place}", "nft", "-f", "-"]
        subprocess.run(command, input=f"table ip service{number} {{\n{chain}\n}}", text=True, check=True)
        with server.running(SOURCE_REPLY_SERVER):
            assert source_seen(client.place, f"10.96.0.{number}") == client.address
