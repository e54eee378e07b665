"""Open vSwitch between nodes, with real packets and both datapaths: that of the kernel runs in the tier ``uml``."""

import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.kernel.checksums import checksum
from tests.kernel.datagram_stream import Stream, until
from tests.kernel.routing_nodes import (
    ECHO_SERVER,
    SOURCE_REPLY_SERVER,
    Cluster,
    ClusterNode,
    Pod,
    connect,
    ip_batch,
    source_seen,
)
from tests.kernel.test_routing_loss import queue_drops

from podwire.cluster.names import NODE_POD_BLOCKS
from podwire.kernel import comparison, netns
from podwire.routing.backends.ovs.switch import RENEWALS, UNDERLAY
from podwire.routing.machine import OWNER
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.routing.tunnels import tunnel_mac
from podwire.state.share import parse, render

Make = Callable[..., Cluster]
DATAPATHS = ["netdev", pytest.param("system", marks=pytest.mark.uml)]
BRIDGE, PORT = "podwire-ovs-br", 9
IPV4, SO_RCVBUFFORCE = 0x0800, 33
OUTER = {"geneve": b"\x00\x00\x65\x58", "vxlan": b"\x08\x00\x00\x00"}
"""How the headers begin: version, flags and protocol (RFC 8926); the flag I (RFC 7348)."""


def settings(datapath: str = "netdev", **options: str) -> RoutingSettings:
    return parse_settings(
        {"backend": "ovs", "ovs": {"datapath": datapath.replace("system", "auto"), **options}}, "test"
    )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Cluster] = []

    def build(datapath: str, count: int = 2, **shape: int | str) -> Cluster:
        cluster = Cluster(tmp_path, count, **shape)  # type: ignore[arg-type]
        made.append(cluster)
        needed = "openvswitch" if datapath == "system" else "nftables"
        if lacks := cluster.all[0].machine.lacks(needed):
            pytest.skip(lacks)
        cluster.configure(settings(datapath))
        cluster.settle()
        return cluster

    yield build
    for cluster in made:
        cluster.close()


def folder(node: ClusterNode) -> str:
    return f"{node.router.own.run_dir}/ovs"


def ofctl(node: ClusterNode, *words: str) -> str:
    command, *remaining = words
    target = f"unix:{folder(node)}/{BRIDGE}.mgmt"
    done = subprocess.run(
        ["ovs-ofctl", "-O", "OpenFlow14", "--no-stats", command, target, *remaining],
        env={**os.environ, "OVS_RUNDIR": folder(node)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def vsctl(node: ClusterNode, *words: str) -> None:
    subprocess.run(["ovs-vsctl", "--timeout=5", f"--db=unix:{folder(node)}/db.sock", *words], check=True)


def drifted(node: ClusterNode) -> bool:
    assert node.router.plan is not None
    return node.machine.drifted(node.router.plan.program_values)


def difference(node: ClusterNode) -> list[str]:
    """What ``podwire state --diff`` says, from the text that the agent serves."""
    shares = parse(render([node.router.applied.share(OWNER)]), "test")
    return [str(each.text) for each in comparison.compare(shares, node.place)]


def talks(a: Pod, b: Pod) -> None:
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address


def vswitchd(node: ClusterNode) -> int:
    return int(Path(folder(node), "vswitchd.pid").read_text())


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_pods_reach_each_other_with_their_own_addresses(make: Make, datapath: str) -> None:
    cluster = make(datapath, 3 if datapath == "netdev" else 2, families="46")
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    for server in pods:
        with server.running(SOURCE_REPLY_SERVER):
            for client in pods:
                assert source_seen(client.place, server.address) == client.address
                assert source_seen(client.place, server.address6) == client.address6
    assert cluster.all[0].router.plan is not None
    assert f"datapath {datapath}" in str(cluster.all[0].router.plan.program_values[0])
    content = os.urandom(1 << 20)
    with pods[1].running(ECHO_SERVER), connect(pods[0].place, pods[1].address, 7) as one:
        received = b""
        for start in range(0, len(content), 1 << 14):
            one.sendall(content[start : start + (1 << 14)])
            while len(received) < start + (1 << 14):
                received += one.recv(1 << 16)
        assert received == content


def test_a_node_that_joins_and_leaves_changes_its_flows_alone(make: Make) -> None:
    cluster = make("netdev", 3)
    first, joins = cluster.all[0], cluster.all[2]
    everyone = ofctl(first, "dump-flows")
    assert everyone.count("10.89.0.13") == 3 and everyone.count("10.89.0.12") == 3
    del cluster.nodes[joins.name]
    first.reconcile()
    without = [line for line in everyone.splitlines() if "10.89.0.13" not in line]
    assert ofctl(first, "dump-flows").splitlines() == without
    cluster.nodes[joins.name] = joins.object()
    joins.reconcile()
    first.reconcile()
    assert sorted(ofctl(first, "dump-flows").splitlines()) == sorted(everyone.splitlines())
    talks(first.pod("a"), joins.pod("c"))


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_flows_to_single_addresses_stay(make: Make, datapath: str) -> None:
    """An address that a node has borrowed is a range of its own, which Open vSwitch prints without a length."""
    cluster = make(datapath, families="46")
    first, second = cluster.all
    blocks = ",".join((*second.cidrs, "10.244.9.5/32", "fd00:0:0:9::5/128"))
    second.annotations[NODE_POD_BLOCKS] = blocks
    second.reconcile()
    for _ in range(3):
        first.reconcile()
        flows = ofctl(first, "dump-flows")
        assert flows.count("nw_dst=10.244.9.5 ") == flows.count("ipv6_dst=fd00:0:0:9::5 ") == 1
        assert difference(first) == [] and not drifted(first)


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_removed_objects_of_the_switch_come_back(make: Make, datapath: str) -> None:
    cluster = make(datapath)
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    assert difference(first) == [] and not drifted(first)
    gateway = "podwire-ovs" if datapath == "netdev" else "podwire-ovs-p"
    ofctl(first, "add-flow", "cookie=0x7,priority=7,in_port=9,actions=drop")
    damages: list[Callable[[], object]] = [
        lambda: ofctl(first, "del-flows"),
        lambda: ofctl(first, "del-flows", "ip,in_port=1,nw_dst=10.244.2.0/24"),
        lambda: vsctl(first, "del-port", BRIDGE, "podwire-ovs-t"),
        lambda: vsctl(first, "del-port", BRIDGE, gateway),
        lambda: vsctl(first, "del-br", BRIDGE),
        lambda: first.shows("ip", "link", "del", "podwire-ovs"),
    ]
    if datapath == "netdev":
        damages += [
            lambda: vsctl(first, "del-br", "podwire-ovs-u"),
            lambda: first.shows("ip", "link", "del", "podwire-ovs-u"),
        ]
    for number, damage in enumerate(damages):
        damage()
        until(lambda: drifted(first))
        until(lambda: any(line.startswith("ovs-") for line in difference(first)))
        first.reconcile()
        assert difference(first) == [] and not drifted(first), number
        talks(a, b)
        talks(b, a)
        if number == 0:
            assert "cookie=0x7," not in ofctl(first, "dump-flows")
            ofctl(first, "add-flow", "cookie=0x7,priority=7,in_port=9,actions=drop")
        if number == 1:
            assert "cookie=0x7," in ofctl(first, "dump-flows"), "a flow of another owner stays"


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_killed_processes_come_back_without_breaking_connections(make: Make, datapath: str) -> None:
    cluster = make(datapath)
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    talks(a, b)
    switch = vswitchd(first)
    for name in ("podwire-ovsdb", "podwire-vswitchd"):
        stream = Stream(a, b)
        pid = first.children()[name]
        until(lambda seen=stream: seen.arrived > 10)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        first.reconcile()
        assert first.children()[name] != pid
        before = stream.sent
        until(lambda seen=stream, sent=before: seen.sent > sent + 50)  # type: ignore[misc]
        assert stream.lost() == 0, name
    assert vswitchd(first) == switch, "ovs-vswitchd runs on when the shell is killed"
    stream = Stream(a, b)
    until(lambda: stream.arrived > 10)
    os.kill(switch, signal.SIGKILL)
    until(lambda: "podwire-vswitchd" not in reaped(first))
    if datapath == "system":
        alone = stream.sent + 5
        until(lambda: stream.sent > alone + 30 and stream.arrived > alone + 20)
    first.reconcile()
    before = stream.arrived
    until(lambda: stream.arrived > before + 20)
    assert vswitchd(first) != switch
    stream.close()
    talks(b, a)


def reaped(node: ClusterNode) -> dict[str, int]:
    """The children of a node; the test, their parent, takes those that ended."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    return node.children()


def test_a_new_agent_loses_no_packet(make: Make) -> None:
    cluster = make("netdev")
    first, second = cluster.all
    stream = Stream(first.pod("a"), second.pod("b"))
    until(lambda: stream.arrived > 10)
    for node in cluster.all:
        before = node.children(), vswitchd(node)
        node.machine.close()
        node.start_agent()
        node.router.configure(settings())
        node.reconcile()
        assert (node.children(), vswitchd(node)) == before
    sent = stream.sent
    until(lambda: stream.sent > sent + 50)
    assert stream.lost() == 0


def encapsulated(node: str, source: str, target: str, content: bytes) -> bytes:
    """What a node unpacks: Geneve's header (RFC 8926), an Ethernet frame for its device, a datagram in IPv4."""
    content += b"\0" * (len(content) % 2)
    ethernet = bytes.fromhex(tunnel_mac(node).replace(":", "")) + b"\x02\0\0\0\0\x09" + b"\x08\0"
    datagram = struct.pack("!HHHH", 40000, PORT, 8 + len(content), 0) + content
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0)
    ends = IPv4Address(source).packed + IPv4Address(target).packed
    head = head[:10] + struct.pack("!H", checksum(head + ends))
    return struct.pack("!HHI", 0, 0x6558, 4096 << 8) + ethernet + head + ends + datagram


def send(place: Path, payload: bytes, target: str, port: int) -> None:
    with netns.inside(place):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.sendto(payload, (target, port))


def test_devices_that_come_and_go_lose_no_packet(make: Make) -> None:
    cluster = make("netdev")
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    streams = [Stream(a, b, 0.001), Stream(b, a, 0.001)]
    for _ in range(100):
        for node in cluster.all:
            ip_batch(node.place, "link add above type veth peer name below", "link del above")
    until(lambda: min(stream.arrived for stream in streams) > 500)
    assert sum(stream.lost() for stream in streams) <= queue_drops(cluster)


def renewals(node: ClusterNode) -> list[int]:
    """How many packets each of the flows has seen that give a packet its time to live again, the first one first."""
    target = f"unix:{folder(node)}/{UNDERLAY}.mgmt"
    command = ["ovs-ofctl", "-O", "OpenFlow14", "dump-flows", target, "udp,nw_ttl=1"]
    environment = {**os.environ, "OVS_RUNDIR": folder(node)}
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    counts = re.findall(r"n_packets=(\d+),.*nw_tos=(\d+),nw_ttl=1", lines)
    return [int(packets) for packets, _ in sorted(counts, key=lambda count: int(count[1]))]


def expired(node: ClusterNode) -> int:
    """The packets that the node dropped at the end of their time to live."""
    names, values = node.shows("cat", "/proc/net/snmp").splitlines()[:2]
    return int(values.split()[names.split().index("InHdrErrors")])


def test_packets_wait_for_the_end_of_the_tunnel(make: Make) -> None:
    cluster = make("netdev")
    first, second = cluster.all
    assert renewals(second) == [0] * RENEWALS
    vsctl(second, "del-port", BRIDGE, "podwire-ovs-t")
    send(first.place, encapsulated(second.name, "10.244.1.9", "10.244.2.9", b"late"), second.ip, 6082)
    until(lambda: expired(second) == 1)
    until(lambda: renewals(second) == [1] * RENEWALS)


def test_only_nodes_send_into_the_tunnel(make: Make) -> None:
    cluster = make("netdev")
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    with netns.inside(b.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    forged = encapsulated(second.name, a.address, b.address, b"forged")
    with sink:
        sink.bind(("", PORT))
        sink.settimeout(20)
        targets = [second.ip, "10.244.2.1", "169.254.82.1", "169.254.82.3"]
        for place in (cluster.fabric, a.place, b.place):
            for target in targets:
                try:
                    send(place, forged, target, 6082)
                except OSError:
                    continue  # no route
        send(a.place, b"marker", b.address, PORT)
        assert sink.recv(100) == b"marker"
        send(first.place, encapsulated(second.name, a.address, b.address, b"by a node!"), second.ip, 6082)
        assert sink.recv(100) == b"by a node!", "the packet is right, and its sender is a node"


def outer_headers(node: ClusterNode, action: Callable[[], object]) -> set[bytes]:
    """The first bytes of the tunnel's header in the outer packets that a node gets and sends during an action."""
    with netns.inside(node.place):
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV4))
    headers = set()
    with capture:
        capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)  # the stream's packets are captured too
        action()
        capture.setblocking(False)
        with suppress(BlockingIOError):
            while packet := capture.recv(100):
                if packet[9] == socket.IPPROTO_UDP and packet[22:24] == struct.pack("!H", 6082):
                    headers.add(packet[28:32])
    return headers


@pytest.mark.parametrize("tunnel", ["geneve", "vxlan"])
def test_modes_choose_between_tunnel_and_plain_routes(make: Make, tunnel: str) -> None:
    cluster = make("netdev", 3, segments=2)
    cluster.configure(settings(tunnel=tunnel))
    cluster.settle()
    far, near = cluster.all[0], cluster.all[2]
    pods = {node.name: node.pod(f"p{node.number}") for node in cluster.all}
    stream = Stream(pods[far.name], pods[near.name])
    until(lambda: stream.arrived > 5)
    cluster.configure(settings(tunnel=tunnel, mode="hybrid"))
    cluster.settle()
    routes = far.shows("ip", "route")
    assert "10.244.3.0/24 via 10.89.1.13 dev eth0" in routes
    assert "10.244.2.0/24 via 10.244.2.1 dev podwire-ovs" in routes
    for node in cluster.all:
        for other in cluster.all:
            talks(pods[node.name], pods[other.name])
    with pods[far.name].running(SOURCE_REPLY_SERVER):
        outer = outer_headers(far, lambda: source_seen(pods["node-2"].place, pods[far.name].address))
    assert outer == {OUTER[tunnel]}, "the tunnel carries packets to the other subnet"
    cluster.configure(settings(tunnel=tunnel, mode="noEncap"))
    cluster.settle()
    assert far.router.plan is not None
    assert [problem.peer for problem in far.router.plan.problems] == ["node-2"], "no router has routes to its pods"
    talks(pods[near.name], pods[far.name])
    del cluster.nodes["node-2"]
    for _ in range(2):
        for node in (far, near):
            node.reconcile()
    assert far.mtu == 1500 and "dev podwire-ovs " not in far.shows("ip", "route", "show", "10.244.3.0/24")
    sent = stream.sent
    until(lambda: stream.sent > sent + 30)
    assert stream.lost() == 0


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_nothing_is_left_after_another_backend_is_chosen(make: Make, datapath: str) -> None:
    cluster = make(datapath)
    pids = [vswitchd(node) for node in cluster.all]
    cluster.configure(RoutingSettings(backend="hostgw"))
    cluster.settle()
    talks(cluster.all[0].pod("a"), cluster.all[1].pod("b"))
    for node, pid in zip(cluster.all, pids, strict=True):
        links = node.shows("ip", "-br", "link")
        assert [word for word in ("podwire", "ovs-", "genev") if word in links] == []
        until(lambda ended=Path(f"/proc/{pid}/exe"): not ended.exists())  # type: ignore[misc]
        assert node.children() == {}
