"""Nodes of podwire and of flanneld in one cluster, on the wire.

The node of flanneld is a namespace that commands of ip(8) and bridge(8) program as flanneld programs its kernel: a
device, and per peer a neighbour, a forwarding entry and a route, by the peer's annotations.
"""

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.kernel.agent_cluster import Machine, eventually
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, Pod, inside, ip_batch, source_seen

from podwire.agent.config import FlannelSection
from podwire.agent.flannel import FlannelOutput
from podwire.kernel import netns
from podwire.kube.resources import NODES
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.flannel import annotations as flannel
from podwire.routing.flannel.annotations import Vtep
from podwire.routing.settings import parse_settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Make = Callable[..., Cluster]
NAME, ADDRESS, CIDR, MAC = "old", "10.89.0.31", "10.244.31.0/24", "8a:34:5e:00:00:31"
PORT = 8472
SETTINGS = parse_settings({"vni": 1, "port": PORT}, "test")


class Outer(NamedTuple):
    """What a packet between two nodes is, by its headers."""

    source: str
    destination: str
    port: int
    flags: int
    vni: int
    inner_mac: str
    inner: tuple[str, str]


class Flanneld:
    """A node as flanneld leaves it, with one pod."""

    def __init__(self, cluster: Cluster | Machine) -> None:
        self.place = cluster.root / "pods" / NAME
        netns.create(self.place)
        ip_batch(
            cluster.fabric, f"link add old type veth peer name eth0 netns {self.place}", "link set old master br0 up"
        )
        ip_batch(
            self.place,
            "link set lo up",
            "link set eth0 up",
            f"address add {ADDRESS}/24 dev eth0",
            f"link add flannel.1 address {MAC} mtu 1450 type vxlan id 1 dev eth0 local {ADDRESS} dstport {PORT}",
            "address add 10.244.31.0/32 dev flannel.1",
            "link set flannel.1 up",
        )
        inside(self.place, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        pod = cluster.root / "pods" / "old-pod"
        netns.create(pod)
        ip_batch(self.place, f"link add cni0 type veth peer name eth0 netns {pod}", "link set cni0 up")
        ip_batch(self.place, "address add 10.244.31.1/24 dev cni0")
        ip_batch(
            pod,
            "link set lo up",
            "link set eth0 up",
            "link set eth0 mtu 1450",
            "address add 10.244.31.5/24 dev eth0",
            "route add default via 10.244.31.1",
        )
        self.pod = Pod(pod, "10.244.31.5")

    def object(self) -> Node:
        written = flannel.write("vxlan", {4: Vtep(MAC, 1)}, {4: ADDRESS})
        return Node(
            metadata=ObjectMeta(name=NAME, annotations=written),
            spec=NodeSpec(pod_cidr=CIDR, pod_cidrs=(CIDR,)),
            status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=ADDRESS),)),
        )

    def learn(self, peer: ClusterNode, annotations: dict[str, str]) -> None:
        """Programs a peer by its annotations, as flanneld does."""
        assert annotations["flannel.alpha.coreos.com/kube-subnet-manager"] == "true"
        assert annotations["flannel.alpha.coreos.com/backend-type"] == "vxlan"
        mac = json.loads(annotations["flannel.alpha.coreos.com/backend-data"])["VtepMAC"]
        outer, gateway = annotations["flannel.alpha.coreos.com/public-ip"], peer.cidr.partition("/")[0]
        inside(self.place, "ip", "neigh", "replace", gateway, "lladdr", mac, "dev", "flannel.1", "nud", "permanent")
        inside(self.place, "bridge", "fdb", "append", mac, "dev", "flannel.1", "dst", outer, "self", "permanent")
        inside(self.place, "ip", "route", "replace", peer.cidr, "via", gateway, "dev", "flannel.1", "onlink")

    def listen(self) -> socket.socket:
        with netns.inside(self.place):
            capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            capture.bind(("eth0", 0))
        capture.settimeout(30)
        return capture


def outer_packets(capture: socket.socket) -> Iterator[Outer]:
    """The packets of tunnels that pass a device."""
    while True:
        frame = capture.recv(65536)
        if frame[12:14] != b"\x08\0" or frame[23] != socket.IPPROTO_UDP:
            continue
        header = 14 + (frame[14] & 15) * 4
        (port,) = struct.unpack_from("!H", frame, header + 2)
        if port != PORT:
            continue
        flags, vni = struct.unpack_from("!B3xI", frame, header + 8)
        ethernet = frame[header + 16 :]
        if ethernet[12:14] != b"\x08\0":
            continue
        source, destination = (str(IPv4Address(frame[at : at + 4])) for at in (26, 30))
        first, last = (str(IPv4Address(ethernet[at : at + 4])) for at in (26, 30))
        yield Outer(source, destination, port, flags, vni >> 8, ethernet[:6].hex(":"), (first, last))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    created = Cluster(tmp_path, 2)
    yield created
    created.close()


def test_nodes_of_flanneld_and_podwire_reach_each_other(cluster: Cluster) -> None:
    old = Flanneld(cluster)
    cluster.nodes[NAME] = old.object()
    cluster.configure(SETTINGS)
    cluster.settle()
    announced = {}
    for node in cluster.all:
        shown = json.loads(node.shows("ip", "-j", "-d", "link", "show", "podwire-vxlan"))[0]
        announced[node.name] = str(shown["address"])
        assert shown["linkinfo"]["info_data"]["id"] == 1
        assert shown["linkinfo"]["info_data"]["port"] == PORT
        old.learn(node, flannel.write("vxlan", {4: Vtep(announced[node.name], 1)}, {4: node.ip}))
    a, b = (node.pod(f"p{node.number}") for node in cluster.all)
    with old.listen() as capture, a.running(SOURCE_REPLY_SERVER), old.pod.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, old.pod.address) == a.address
        assert source_seen(old.pod.place, a.address) == old.pod.address
        assert source_seen(b.place, old.pod.address) == b.address
        assert source_seen(b.place, a.address) == b.address
        ends = {(a.address, old.pod.address), (old.pod.address, a.address)}
        by_ends: dict[tuple[str, str], Outer] = {}
        for packet in outer_packets(capture):
            if packet.inner in ends:
                by_ends[packet.inner] = packet
            if by_ends.keys() == ends:
                break
    first = cluster.all[0]
    there, back = by_ends[a.address, old.pod.address], by_ends[old.pod.address, a.address]
    assert there[:6] == (first.ip, ADDRESS, PORT, 8, 1, MAC)
    assert back[:6] == (ADDRESS, first.ip, PORT, 8, 1, announced[first.name])


def test_a_new_hardware_address_of_flanneld_is_followed(cluster: Cluster) -> None:
    old = Flanneld(cluster)
    cluster.nodes[NAME] = old.object()
    cluster.configure(SETTINGS)
    cluster.settle()
    first = cluster.all[0]
    assert f"{MAC} dst {ADDRESS}" in first.shows("bridge", "fdb", "show", "dev", "podwire-vxlan")
    moved = old.object()
    changed = flannel.write("vxlan", {4: Vtep("8a:34:5e:00:00:77", 1)}, {4: ADDRESS})
    cluster.nodes[NAME] = Node(
        metadata=ObjectMeta(name=NAME, annotations=changed), spec=moved.spec, status=moved.status
    )
    first.reconcile()
    entries = first.shows("bridge", "fdb", "show", "dev", "podwire-vxlan")
    assert f"8a:34:5e:00:00:77 dst {ADDRESS}" in entries and MAC not in entries
    del cluster.nodes[NAME]
    first.reconcile()
    assert ADDRESS not in first.shows("bridge", "fdb", "show", "dev", "podwire-vxlan")
    assert CIDR not in first.shows("ip", "route")


def test_an_agent_with_flannels_file_announces_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    try:
        net_conf = tmp_path / "net-conf.json"
        net_conf.write_text('{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}')
        machine.add_node(1, start=False)
        file = tmp_path / "node-1.yaml"
        section = {"netConf": str(net_conf), "announce": True, "subnetFile": str(tmp_path / "flannel" / "subnet.env")}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"flannel": section}))
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1"))

        def announced() -> dict[str, str]:
            result = machine.api("get", NODES, "node-1")["metadata"].get("annotations", {})
            return {key: text for key, text in result.items() if key.startswith(flannel.PREFIX)}

        device = json.loads(inside(tmp_path / "node-1", "ip", "-j", "-d", "link", "show", "podwire-vxlan"))[0]
        assert device["linkinfo"]["info_data"]["id"] == 1
        expected = flannel.write("vxlan", {4: Vtep(device["address"], 1)}, {4: "10.89.0.11"})
        eventually(lambda: announced() == expected)
        assert (tmp_path / "flannel" / "subnet.env").read_text() == (
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        )
    finally:
        machine.close()


def test_ipv6_packets_go_by_the_data_of_ipv6(tmp_path: Path) -> None:
    """Outer packets over IPv6: the hardware address of ``backend-v6-data`` at ``public-ipv6``."""
    cluster = Cluster(tmp_path, 1, families="64")
    try:
        node, place, mac = cluster.all[0], tmp_path / "pods" / NAME, "8a:34:5e:00:00:66"
        netns.create(place)
        inside(place, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.forwarding=1")
        ip_batch(cluster.fabric, f"link add old type veth peer name eth0 netns {place}", "link set old master br0 up")
        ip_batch(
            place,
            "link set lo up",
            "link set eth0 up",
            "address add fd89::31/64 dev eth0 nodad",
            f"link add flannel-v6.1 address {mac} mtu 1430 type vxlan id 1 dev eth0 local fd89::31 dstport {PORT}",
            "address add fd00:0:0:31::/128 dev flannel-v6.1 nodad",
            "address add fd00:0:0:31::5/128 dev lo nodad",
            "link set flannel-v6.1 up",
        )
        annotations = flannel.write("vxlan", {6: Vtep(mac, 1)}, {6: "fd89::31"})
        assert annotations["flannel.alpha.coreos.com/backend-v6-data"] == f'{{"VNI":1,"VtepMAC":"{mac}"}}'
        cluster.nodes[NAME] = Node(
            metadata=ObjectMeta(name=NAME, annotations=annotations),
            spec=NodeSpec(pod_cidr="fd00:0:0:31::/64", pod_cidrs=("fd00:0:0:31::/64",)),
            status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="fd89::31"),)),
        )
        cluster.configure(SETTINGS)
        cluster.settle()
        pod, device = (
            node.pod("p6"),
            str(json.loads(node.shows("ip", "-j", "link", "show", "podwire-vxlan"))[0]["address"]),
        )
        gateway = "fd00:0:0:1::"
        inside(place, "ip", "neigh", "replace", gateway, "lladdr", device, "dev", "flannel-v6.1", "nud", "permanent")
        inside(place, "bridge", "fdb", "append", device, "dev", "flannel-v6.1", "dst", node.ip6, "self", "permanent")
        route = ("fd00:0:0:1::/64", "via", gateway, "dev", "flannel-v6.1", "onlink", "src", "fd00:0:0:31::5")
        inside(place, "ip", "-6", "route", "replace", *route)
        other = Pod(place, "fd00:0:0:31::5", "fd00:0:0:31::5")
        with pod.running(SOURCE_REPLY_SERVER), other.running(SOURCE_REPLY_SERVER):
            assert source_seen(pod.place, other.address6) == pod.address6
            assert source_seen(place, pod.address6) == other.address6
    finally:
        cluster.close()


MAC6, ADDRESS6 = "8a:34:5e:00:00:66", "fd89::31"


class DualFlanneld(Flanneld):
    """A node of flanneld with both families, whose IPv6 pods have a device of their own, over IPv6."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        inside(self.place, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.forwarding=1")
        ip_batch(
            self.place,
            f"address add {ADDRESS6}/64 dev eth0 nodad",
            f"link add flannel-v6.1 address {MAC6} mtu 1450 type vxlan id 1 dev eth0 local {ADDRESS6} dstport {PORT}",
            "address add fd00:0:0:31::/128 dev flannel-v6.1 nodad",
            "link set flannel-v6.1 up",
            "address add fd00:0:0:31::1/64 dev cni0 nodad",
        )
        ip_batch(
            self.pod.place,
            "address add fd00:0:0:31::5/64 dev eth0 nodad",
            "route add default via fd00:0:0:31::1",
        )
        self.pod.address6 = "fd00:0:0:31::5"

    def object(self) -> Node:
        vteps = {4: Vtep(MAC, 1), 6: Vtep(MAC6, 1)}
        cidrs = (CIDR, "fd00:0:0:31::/64")
        return Node(
            metadata=ObjectMeta(name=NAME, annotations=flannel.write("vxlan", vteps, {4: ADDRESS, 6: ADDRESS6})),
            spec=NodeSpec(pod_cidr=CIDR, pod_cidrs=cidrs),
            status=NodeStatus(addresses=tuple(NodeAddress(type="InternalIP", address=a) for a in (ADDRESS, ADDRESS6))),
        )

    def learn(self, peer: ClusterNode, annotations: dict[str, str]) -> None:
        super().learn(peer, annotations)
        mac = json.loads(annotations["flannel.alpha.coreos.com/backend-v6-data"])["VtepMAC"]
        outer, gateway = annotations["flannel.alpha.coreos.com/public-ipv6"], peer.cidrs[1].partition("/")[0]
        device = ("dev", "flannel-v6.1")
        inside(self.place, "ip", "neigh", "replace", gateway, "lladdr", mac, *device, "nud", "permanent")
        inside(self.place, "bridge", "fdb", "append", mac, *device, "dst", outer, "self", "permanent")
        inside(self.place, "ip", "-6", "route", "replace", peer.cidrs[1], "via", gateway, *device, "onlink")

    def received(self, device: str) -> int:
        """The packets that came out of a tunnel."""
        return int(
            json.loads(inside(self.place, "ip", "-j", "-s", "link", "show", device))[0]["stats64"]["rx"]["packets"]
        )


@pytest.mark.parametrize("families", ["46", "64"])
def test_both_families_reach_nodes_of_flanneld_by_their_devices(tmp_path: Path, families: str) -> None:
    cluster = Cluster(tmp_path, 2, families=families)
    try:
        old = DualFlanneld(cluster)
        cluster.nodes[NAME] = old.object()
        cluster.configure(SETTINGS)
        cluster.settle()
        section = FlannelSection(announce=True)
        for node in cluster.all:
            me, _ = node.router.own.look()
            assert me is not None and node.router.plan is not None
            old.learn(node, FlannelOutput(section).annotations(me, node.router.plan))
        a, b = (node.pod(f"p{node.number}") for node in cluster.all)
        with a.running(SOURCE_REPLY_SERVER), old.pod.running(SOURCE_REPLY_SERVER):
            before = {device: old.received(device) for device in ("flannel.1", "flannel-v6.1")}
            assert source_seen(a.place, old.pod.address6) == a.address6
            assert source_seen(old.pod.place, a.address6) == old.pod.address6
            assert old.received("flannel.1") == before["flannel.1"], "packets of IPv6 pods travel over IPv6"
            assert old.received("flannel-v6.1") > before["flannel-v6.1"]
            assert source_seen(a.place, old.pod.address) == a.address
            assert source_seen(old.pod.place, a.address) == old.pod.address
            assert old.received("flannel.1") > before["flannel.1"]
            assert source_seen(b.place, a.address) == b.address and source_seen(b.place, a.address6) == b.address6
        del cluster.nodes[NAME]
        cluster.settle()
        for node in cluster.all:
            assert "podwire-vxlan2" not in node.shows("ip", "link") + node.shows("nft", "list", "tables")
    finally:
        cluster.close()
