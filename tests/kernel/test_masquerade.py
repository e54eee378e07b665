"""Masquerade by real packets: every row of the table, in both families, with the rules of nftables and of iptables."""

import json
import socket
import struct
import time
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace
from tests.cases.masquerade_table import CASES, MasqueradeCase
from tests.kernel import multicast
from tests.kernel.routing_nodes import Cluster, ClusterNode, Pod, inside, ip_batch

from podwire.kernel import netns, sysctl
from podwire.kernel.iptables import find
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.proxy.dataplane import ServiceDataPlane
from podwire.proxy.modes import open_dataplane
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.routing.machine import OWNER
from podwire.routing.settings import RoutingSettings
from podwire.state.chain_marks import MASQUERADE_CHAIN
from podwire.trace.packet import LocalAddresses, Packet
from podwire.why.services.rules import read_other_nat

PORT, NODE_PORT = 9000, 30900
OTHER = {4: "172.16.7.2", 6: "fd16:7::2"}
ROUTER = {4: "10.89.0.1", 6: "fd89::1"}
OUTSIDE = {4: "192.0.2.1", 6: "2001:db8::1"}
EXCEPTED = {4: "198.51.100.1", 6: "2001:db8:1::1"}
FAR_NODE = {4: "203.0.113.1", 6: "2001:db8:2::1"}
SERVICE = {4: "10.96.0.10", 6: "fd96::10"}
GROUP = {4: "239.1.1.1", 6: "ff0e::101"}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


class Net:
    """Two nodes, two pods on the first and one on the second, a machine behind the first, and hosts outside."""

    def __init__(self, root: Path, form: str) -> None:
        self.cluster = Cluster(root, 2, families="46")
        self.form, self.other = form, root / "other"
        self.router: socket.socket | None = None
        self.plane: ServiceDataPlane | None = None
        netns.create(self.other)

    def prepare(self) -> None:
        fabric, item = self.cluster.fabric, self.cluster.all[0]
        self._outside(fabric)
        self.cluster.nodes["far"] = Node(
            metadata=ObjectMeta(name="far"),
            spec=NodeSpec(),
            status=NodeStatus(
                addresses=tuple(NodeAddress(type="InternalIP", address=address) for address in FAR_NODE.values())
            ),
        )
        self.configure(self.settings("hostgw"))
        self.pod, self.same, self.peer = item.pod("a"), item.pod("same"), self.cluster.all[1].pod("b")
        self._other(item)
        self.plane = open_dataplane(self.form, self._facts(item), item.place)
        self.plane.load({"default/web": tuple(map(self._service, (4, 6)))})
        paths = [(self.pod.address, GROUP[4], self.pod_device(4)), (OTHER[4], GROUP[4], "other")]
        self.router = multicast.forward(item.place, "eth0", paths)

    def pod_device(self, version: int) -> str:
        """The node's end of the link of the pod."""
        arguments = ("ip", "-j", "route", "get", self.end(self.pod, version))
        return str(json.loads(inside(self.cluster.all[0].place, *arguments))[0]["dev"])

    def settings(self, backend: str) -> RoutingSettings:
        excepted = tuple(str(ip_network(address)) for address in EXCEPTED.values())
        form: Literal["nftables", "iptables"] = "iptables" if self.form == "iptables" else "nftables"
        return RoutingSettings(backend=backend, masquerade_rules=form, non_masquerade_cidrs=excepted)

    def configure(self, settings: RoutingSettings) -> None:
        self.cluster.configure(settings)
        self.cluster.settle()

    def _outside(self, fabric: Path) -> None:
        sysctl.write("net/ipv6/conf/all/forwarding", "1", fabric)
        names = [item[v] for item in (EXCEPTED, FAR_NODE) for v in (4, 6)] + [OUTSIDE[6]]
        ip_batch(fabric, f"address add {ROUTER[6]}/64 dev br0 nodad", *(f"address add {a} dev br0" for a in names))
        for node in self.cluster.all:
            ip_batch(node.place, f"route add default via {ROUTER[6]}")

    def _other(self, node: ClusterNode) -> None:
        """A machine with a link of its own to the node; the other node and the outside know the way to it."""
        ip_batch(
            node.place,
            f"link add other type veth peer name eth0 netns {self.other}",
            "link set other up",
            "address add 172.16.7.1/24 dev other",
            "address add fe80::99/64 dev other nodad",
            "route add fd16:7::/64 dev other",
        )
        ip_batch(
            self.other,
            "link set lo up",
            "link set eth0 up",
            f"address add {OTHER[4]}/24 dev eth0",
            f"address add {OTHER[6]}/64 dev eth0 nodad",
            "route add default via 172.16.7.1",
            "route add default via fe80::99 dev eth0",
        )
        for place in (self.cluster.fabric, self.cluster.all[1].place):
            ip_batch(place, f"route add 172.16.7.0/24 via {node.ip}", f"route add fd16:7::/64 via {node.ip6}")

    def _facts(self, node: ClusterNode) -> NodeFacts:
        return NodeFacts(name=node.name, addresses=(node.ip, node.ip6), pod_cidrs=("10.244.0.0/16", "fd00::/48"))

    def _service(self, version: int) -> ResolvedPort:
        return ResolvedPort(
            service="default/web",
            port_name="",
            protocol="udp",
            family="ip" if version == 4 else "ip6",
            port=80,
            cluster_ip=SERVICE[version],
            node_port=NODE_PORT,
            cluster_endpoints=(ResolvedEndpoint(self.end(self.peer, version), PORT),),
            has_endpoints=True,
        )

    @staticmethod
    def end(pod: Pod, version: int) -> str:
        return pod.address if version == 4 else pod.address6

    def address(self, name: str, version: int) -> str:
        """The address of a source."""
        node = self.cluster.all[0]
        return {
            "pod": self.end(self.pod, version),
            "node": node.ip if version == 4 else node.ip6,
            "other": OTHER[version],
        }[name]

    def place(self, source: str) -> Path:
        return {"pod": self.pod.place, "node": self.cluster.all[0].place, "other": self.other}[source]

    def target(self, case: MasqueradeCase) -> tuple[str, int, Path]:
        """The destination address and port, and the namespace of the receiver."""
        item, two = self.cluster.all
        v, fabric = case.version, self.cluster.fabric
        own = item.ip if v == 4 else item.ip6
        receivers = {
            "pod on the same node": (self.end(self.same, v), PORT, self.same.place),
            "pod on another node": (self.end(self.peer, v), PORT, self.peer.place),
            "its own node": (own, PORT, item.place),
            "node of the same subnet": (two.ip if v == 4 else two.ip6, PORT, two.place),
            "node behind a router": (FAR_NODE[v], PORT, fabric),
            "Service": (SERVICE[v], 80, self.peer.place),
            "packet marked by Services": (own, NODE_PORT, self.peer.place),
            "outside": (OUTSIDE[v], PORT, fabric),
            "non-masquerade CIDR": (EXCEPTED[v], PORT, fabric),
            "multicast": (GROUP[v], PORT, fabric if v == 4 or case.source == "node" else item.place),
            "limited broadcast": ("255.255.255.255", PORT, fabric if case.source == "node" else item.place),
        }
        return receivers[case.destination]

    def group_device(self, case: MasqueradeCase) -> str:
        """The device at which the receiver joins the group."""
        if case.version == 4 or case.source == "node":
            return "br0"
        return self.pod_device(6) if case.source == "pod" else "other"

    def close(self) -> None:
        if self.router is not None:
            self.router.close()
        if self.plane is not None:
            self.plane.close()
        netns.delete(self.other)
        self.cluster.close()


def open_receiver(place: Path, version: int, group: str = "", link: str = "") -> socket.socket:
    with netns.inside(place):
        item = socket.socket(FAMILIES[version], socket.SOCK_DGRAM)
        device = socket.if_nametoindex(link) if link else 0
    item.bind(("", PORT))
    if group and version == 4:
        member = struct.pack("=4s4si", ip_address(group).packed, bytes(4), device)
        item.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    elif group:
        member = struct.pack("=16si", ip_address(group).packed, device)
        item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
    item.settimeout(0.3)
    return item


def open_sender(place: Path, version: int) -> socket.socket:
    with netns.inside(place):
        item = socket.socket(FAMILIES[version], socket.SOCK_DGRAM)
        device = socket.if_nametoindex("eth0")
    item.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    if version == 4:
        item.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 8)
        item.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("=4s4si", bytes(4), bytes(4), device))
    else:
        item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 8)
        item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, device)
    return item


def observed_source(net: Net, case: MasqueradeCase) -> str:
    """The source address of the packet as its receiver sees it."""
    address, port, place = net.target(case)
    joined = (GROUP[case.version], net.group_device(case)) if case.destination == "multicast" else ()
    text = f"{case.source} to {case.destination}, IPv{case.version}".encode()
    with (
        open_receiver(place, case.version, *joined) as receiver,
        open_sender(net.place(case.source), case.version) as sender,
    ):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            sender.sendto(text, (address, port))
            try:
                got, peer = receiver.recvfrom(200)
            except TimeoutError:
                continue
            if got == text:
                return str(peer[0])
    return "no packet arrives"


@pytest.fixture(params=["nftables", "iptables"])
def net(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Net]:
    if request.param == "iptables" and find("nft") is None and find("legacy") is None:
        pytest.skip("iptables-restore is not installed")
    created = Net(tmp_path, request.param)
    try:
        created.prepare()
        yield created
    finally:
        created.close()


def test_receivers_see_the_sources_of_the_table(net: Net) -> None:
    wrong = []
    for case in CASES:
        got, expected = observed_source(net, case), net.address(case.seen, case.version)
        if got != expected:
            wrong.append(f"{case}: seen is {got}, expected {expected}")
    assert not wrong, "\n".join(wrong)


def test_the_node_takes_the_address_of_a_tunnel(net: Net) -> None:
    net.configure(net.settings("vxlan"))
    for version, address in ((4, "10.244.1.1"), (6, "fd00:0:0:1::1")):
        assert observed_source(net, MasqueradeCase("node", "pod on another node", version, "")) == address
        assert observed_source(net, MasqueradeCase("pod", "pod on another node", version, "")) == net.address(
            "pod", version
        )


def test_a_change_of_the_form_removes_the_other_rules(net: Net) -> None:
    item = net.cluster.all[0]

    def forms() -> tuple[bool, bool]:
        tables = inside(item.place, "nft", "list", "tables")
        chains = inside(item.place, "iptables-save") + inside(item.place, "ip6tables-save")
        return "podwire-masquerade" in tables, MASQUERADE_CHAIN in chains

    orders: tuple[Literal["nftables", "iptables"], ...] = ("iptables", "nftables", "iptables")
    for form in orders:
        net.configure(RoutingSettings(backend="hostgw", masquerade_rules=form))
        assert forms() == (form == "nftables", form == "iptables")
        assert observed_source(net, MasqueradeCase("pod", "outside", 4, "")) == item.ip
        text = "\n".join(item.router.applied.share(OWNER).lines())
        assert ("*nat ip" in text) == (form == "iptables")
    item.machine.close()
    item.start_agent()
    item.router.configure(RoutingSettings(backend="hostgw", masquerade=False))
    item.reconcile()
    assert forms() == (False, False)


def test_why_reads_both_forms(net: Net) -> None:
    net.configure(net.settings("vxlan"))
    tracer = read_other_nat(net.cluster.all[0].place, LocalAddresses())
    assert tracer is not None
    for version in (4, 6):
        outside = Packet(source=net.address("pod", version), destination=OUTSIDE[version], destination_port=PORT)
        inside_cluster = replace(outside, destination=net.end(net.peer, version))
        hidden = [next(iter(tracer.outcomes(packet))).masqueraded for packet in (outside, inside_cluster)]
        assert hidden == [True, False]
