"""Packets that a node would unpack: accepted from nodes alone, on every path, and not tracked.

Each attempt is a frame with a datagram for a pod. Without the guard it arrives, which shows that the attempt is one.
"""

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.kernel.checksums import checksum
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, ClusterNode, Pod, Talk

from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack, Flow
from podwire.kernel.features import Features
from podwire.routing.settings import RoutingSettings
from podwire.routing.tables import INGRESS
from podwire.routing.tunnels import tunnel_mac

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Make = Callable[..., Cluster]
VXLAN_PORT, VNI, PORT = 8472, 4096, 9999
SERVICE, SERVICE_PORT = "10.96.0.50", 80
GUARD = ("nft", "delete", "table", "inet", "podwire-routing")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, segments: int = 1) -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments, "4"))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


def tunnel_payload(node: str, source: str, target: str, content: bytes) -> bytes:
    """What a node unpacks: VXLAN's header (RFC 7348), an Ethernet frame for its device, a datagram in IPv4."""
    content += b"\0" * (len(content) % 2)
    ethernet = bytes.fromhex(tunnel_mac(node).replace(":", "")) + b"\x02\0\0\0\0\x09" + b"\x08\0"
    datagram = struct.pack("!HHHH", 40000, PORT, 8 + len(content), 0) + content
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0)
    ends = IPv4Address(source).packed + IPv4Address(target).packed
    head = head[:10] + struct.pack("!H", checksum(head + ends))
    return struct.pack("!II", 1 << 27, VNI << 8) + ethernet + head + ends + datagram


def send(place: Path, payload: bytes, target: str, port: int) -> None:
    with netns.inside(place):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.sendto(payload, (target, port))


def translate(node: ClusterNode, target: str) -> None:
    """The rules of a Service with a node as its endpoint: translation, and the node's address as the source."""
    rules = f"""table ip service {{
        chain prerouting {{ type nat hook prerouting priority dstnat;
            ip daddr {SERVICE} udp dport {SERVICE_PORT} dnat to {target}:{VXLAN_PORT}; }}
        chain postrouting {{ type nat hook postrouting priority srcnat; udp dport {VXLAN_PORT} masquerade; }}
    }}"""
    subprocess.run(["nsenter", f"--net={node.place}", "nft", "-f", "-"], input=rules, text=True, check=True)


ATTEMPTS = (
    "a host to a node",
    "a pod to its own node",
    "a pod to another node",
    "a pod to its own node through a Service",
    "a pod to another node through a Service",
    "a host to another node through a Service",
)


def attempt(cluster: Cluster, pod: Pod, kind: str) -> tuple[ClusterNode, Path, str, int]:
    """The receiving node, the sender's namespace, and the destination of an attempt."""
    first, second = cluster.all[:2]
    receiver = first if "own node" in kind else second
    place = pod.place if kind.startswith("a pod") else cluster.fabric
    if "Service" not in kind:
        return receiver, place, receiver.ip, VXLAN_PORT
    translate(first, receiver.ip)
    if place == cluster.fabric:
        subprocess.run(
            ["nsenter", f"--net={place}", "ip", "route", "replace", f"{SERVICE}/32", "via", first.ip], check=True
        )
    return receiver, place, SERVICE, SERVICE_PORT


@pytest.mark.parametrize("kind", ATTEMPTS)
def test_only_nodes_send_into_tunnels(make: Make, kind: str) -> None:
    cluster = make(2)
    cluster.settle()
    first, second = cluster.all
    pods = {node.name: node.pod(f"p{node.number}") for node in cluster.all}
    receiver, place, target, port = attempt(cluster, pods[first.name], kind)
    other = second if receiver is first else first
    victim, trusted = pods[receiver.name], pods[other.name]

    def forged(content: bytes) -> bytes:
        return tunnel_payload(receiver.name, trusted.address, victim.address, content)

    with netns.inside(victim.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sink:
        sink.bind(("", PORT))
        sink.settimeout(30)
        send(place, forged(b"forged"), target, port)
        send(trusted.place, b"marker", victim.address, PORT)
        assert sink.recv(100) == b"marker"
        for node in cluster.all:
            node.shows(*GUARD)
        send(place, forged(b"unguarded"), target, port)
        assert sink.recv(100).rstrip(b"\0") == b"unguarded"


class OldKernel(Features):
    """The features of a kernel before 5.10."""

    def lacks(self, name: str) -> str:
        return "the kernel has none" if name == INGRESS else super().lacks(name)


def tracked(node: ClusterNode, addresses: tuple[str, ...], protocol: str) -> list[Flow]:
    with Conntrack(node.place) as conntrack:
        return list(conntrack.flows(addresses, protocol))


def untracked_outer_packets(cluster: Cluster, a: Pod, b: Pod) -> None:
    """Packets of pods are tracked on both nodes, and those between the nodes are not."""
    ends = tuple(node.ip for node in cluster.all)
    with b.running(ECHO_SERVER):
        Talk(a, b).end()
    for node in cluster.all:
        inner, outer = tracked(node, (a.address,), "TCP"), tracked(node, ends, "UDP")
        assert {flow.original.dst for flow in inner} == {b.address}
        assert [flow for flow in outer if VXLAN_PORT in (flow.original.dport, flow.original.sport)] == []


def test_outer_packets_are_not_tracked(make: Make) -> None:
    cluster = make(2)
    cluster.settle()
    first, second = cluster.all
    untracked_outer_packets(cluster, first.pod("a"), second.pod("b"))


def test_outer_packets_pass_untracked_by_a_new_card(make: Make) -> None:
    """The kernel takes the chain of a device away together with the device."""
    cluster = make(2)
    cluster.settle()
    first, second = cluster.all
    second.shows("ip", "link", "del", "eth0")
    second.add_card()
    first.shows("ip", "neigh", "flush", "dev", "eth0")  # the new card has another hardware address
    second.reconcile()
    second.reconcile()
    assert not second.machine.drifted()
    assert 'hook ingress device "eth0"' in second.shows("nft", "list", "table", "inet", "podwire-routing")
    untracked_outer_packets(cluster, first.pod("a"), second.pod("b"))


def test_kernel_without_ingress_has_the_same_guard(make: Make) -> None:
    cluster = make(2)
    first, second = cluster.all
    for node in cluster.all:
        node.machine.close()
        node.features = OldKernel()
        node.start_agent()
    cluster.settle()
    assert "ingress" not in first.shows("nft", "list", "table", "inet", "podwire-routing")
    untracked_outer_packets(cluster, first.pod("a"), second.pod("b"))


def test_direct_routing_is_switched_without_loss(make: Make) -> None:
    """Nodes 1 and 3 are on one subnet, node 2 behind a router; each node changes by itself, while packets flow."""
    cluster = make(3, segments=2)
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    with pods[0].running(ECHO_SERVER), pods[1].running(ECHO_SERVER), pods[2].running(ECHO_SERVER):
        talks = [Talk(pod, other) for pod in pods for other in pods if pod is not other]
        for direct in (True, False, True):
            for node in cluster.all:
                node.router.configure(RoutingSettings(direct_routing=direct))
                node.reconcile()
                assert node.router.plan is not None
                chosen = node.router.plan.senders
                near = {"node-1": "node-3", "node-3": "node-1"}.get(node.name)
                expected = {peer: "hostgw" if direct and peer == near else "vxlan" for peer in chosen}
                assert chosen == expected
        assert max(talk.end() for talk in talks) == 0
