"""Pods wired in real namespaces: packets pass in both families, and a failure leaves no objects."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.sockets import socket_in

from podwire.errors import KernelError, KernelExists, KernelNotFound
from podwire.kernel import netns, network, pods, sysctl
from podwire.kernel.netlink import Netlink
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address, Neighbour, Route, Sysctl

OWNER = OwnerMark(112)
HOST_MAC = "ee:ee:ee:ee:ee:ee"


def node_side(number: int, place: Path) -> NetworkState:
    name, mac = f"pod{number}", f"02:00:00:00:00:{number:02x}"
    return NetworkState(
        links=(Link(name, "veth", 1400, mac=HOST_MAC, alias=f"ns/{name} x", peer="eth0", peer_netns=str(place)),),
        routes=(
            Route(f"10.244.0.{number}/32", link=name, proto=112),
            Route(f"fd44::{number:x}/128", link=name, proto=112),
        ),
        neighbours=(
            Neighbour(name, f"10.244.0.{number}", mac, proto=112),
            Neighbour(name, f"fd44::{number:x}", mac, proto=112),
        ),
        sysctls=(
            Sysctl(f"net/ipv4/conf/{name}/forwarding", "1"),
            Sysctl(f"net/ipv4/conf/{name}/rp_filter", "1"),
            Sysctl(f"net/ipv6/conf/{name}/accept_ra", "0"),
        ),
    )


def pod_side(number: int) -> NetworkState:
    return NetworkState(
        links=(Link("lo"), Link("eth0", mac=f"02:00:00:00:00:{number:02x}")),
        addresses=(
            Address("eth0", f"10.244.0.{number}/32", proto=112),
            Address("eth0", f"fd44::{number:x}/128", proto=112),
        ),
        routes=(
            Route("169.254.1.1/32", link="eth0", proto=112),
            Route("default", "169.254.1.1", "eth0", mtu=1350, proto=112),
            Route("::/0", "fe80::1", "eth0", mtu=1350, proto=112),
        ),
        neighbours=(
            Neighbour("eth0", "169.254.1.1", HOST_MAC, proto=112),
            Neighbour("eth0", "fe80::1", HOST_MAC, proto=112),
        ),
        sysctls=(Sysctl("net/ipv4/ip_unprivileged_port_start", "0"),),
    )


class Machine:
    """A node and some pods' namespaces."""

    def __init__(self, folder: Path, count: int) -> None:
        self.node = folder / "node"
        self.pods = [folder / f"pod{number}" for number in range(1, count + 1)]
        for path in (self.node, *self.pods):
            netns.create(path)
        sysctl.write("net/ipv6/conf/all/forwarding", "1", self.node)
        self.netlink = Netlink(self.node)

    def wire(self, number: int) -> bool:
        place = self.pods[number - 1]
        return pods.wire(self.netlink, place, node_side(number, place), pod_side(number))

    def is_ready(self, number: int) -> bool:
        place = self.pods[number - 1]
        return pods.is_ready(self.netlink, place, node_side(number, place), pod_side(number))

    def ready(self, number: int) -> None:
        """Wires a pod and waits until packets pass, as the CNI server does before it answers ADD."""
        done = self.wire(number)
        deadline = time.monotonic() + 10
        while not done:
            assert time.monotonic() < deadline, "no packet passes"
            done = self.is_ready(number)

    def close(self) -> None:
        self.netlink.close()
        for path in (self.node, *self.pods):
            netns.delete(path)


@pytest.fixture
def machine() -> Iterator[Machine]:
    folder = Path(f"/run/pwt-kernel-pods-{os.getpid()}")
    created = Machine(folder, 3)
    yield created
    created.close()
    folder.rmdir()


def connect(machine: Machine, source: int, target: int, *, v6: bool) -> str:
    """The address that the target sees."""
    family = socket.AF_INET6 if v6 else socket.AF_INET
    address = f"fd44::{target:x}" if v6 else f"10.244.0.{target}"
    with (
        socket_in(machine.pods[target - 1], family, blocking=True) as server,
        socket_in(machine.pods[source - 1], family, blocking=True) as client,
    ):
        server.bind((address, 80))
        server.listen()
        client.settimeout(10)
        client.connect((address, 80))
        accepted, peer = server.accept()
        accepted.close()
        return str(peer[0])


def test_pods_exchange_packets_at_once(machine: Machine) -> None:
    """Without ip_forward, proxy_arp or duplicate address detection; the source address is kept."""
    assert sysctl.read("net/ipv4/ip_forward", machine.node) == "0"
    for number in (1, 2):
        machine.ready(number)
    assert connect(machine, 1, 2, v6=True) == "fd44::1"
    assert connect(machine, 2, 1, v6=True) == "fd44::2"
    assert connect(machine, 1, 2, v6=False) == "10.244.0.1"


@pytest.mark.parametrize(
    "away", ["link set eth0 down", "-6 route del local fd44::1 dev eth0 table local"], ids=["device", "address"]
)
def test_interfaces_that_do_not_forward_are_detected(machine: Machine, away: str) -> None:
    """A device that is not up yet, and an IPv6 address that does not reach the pod yet."""
    machine.ready(1)
    machine.ready(2)
    subprocess.run(["nsenter", f"--net={machine.pods[0]}", "ip", *away.split()], check=True)
    assert not machine.is_ready(1)
    assert machine.is_ready(2)


def test_a_wired_pod_has_the_planned_state(machine: Machine) -> None:
    machine.wire(1)
    place = machine.pods[0]
    node = replace(node_side(1, place), links=(replace(node_side(1, place).links[0], peer=""),))
    have = network.read(machine.netlink, sysctls=tuple(x.path for x in node.sysctls))
    assert network.plan(machine.netlink, node, replace(OWNER, links=("pod1",))).steps == ()
    assert have.sysctls == node.sysctls
    with Netlink(place) as pod:
        assert not network.plan(pod, pod_side(1), OWNER)
        assert not [x for x in network.read(pod).addresses if x.cidr.startswith("fe80:")]
        assert network.read_link(pod, "eth0").mtu == 1400


def test_a_taken_name_leaves_nothing_behind(machine: Machine) -> None:
    machine.wire(1)
    before = network.read(machine.netlink)
    with pytest.raises(KernelExists):
        machine.wire(1)
    with pytest.raises(KernelExists):
        pods.wire(machine.netlink, machine.pods[0], node_side(2, machine.pods[0]), pod_side(2))
    assert network.read(machine.netlink) == before


@pytest.mark.parametrize(
    "broken",
    [
        {"routes": (Route("10.9.0.0/16", "192.0.2.1", "eth0", proto=112),)},
        {"sysctls": (Sysctl("net/ipv4/no_such_thing", "1"),)},
    ],
)
def test_a_failure_inside_the_pod_leaves_nothing_behind(machine: Machine, broken: dict[str, object]) -> None:
    before = network.read(machine.netlink)
    pod = NetworkState(**{**{f: getattr(pod_side(1), f) for f in NetworkState.__struct_fields__}, **broken})
    with pytest.raises(KernelError):
        pods.wire(machine.netlink, machine.pods[0], node_side(1, machine.pods[0]), pod)
    assert network.read(machine.netlink) == before
    machine.ready(1)


def test_a_failure_on_the_node_leaves_nothing_behind(machine: Machine) -> None:
    network.add(machine.netlink, NetworkState(routes=(Route("10.244.0.1/32", kind="blackhole", proto=4),))).check()
    before = network.read(machine.netlink)
    with pytest.raises(KernelExists, match=r"route 10\.244\.0\.1"):
        machine.wire(1)
    assert network.read(machine.netlink) == before


def test_a_missing_namespace_is_an_error(machine: Machine) -> None:
    with pytest.raises(KernelNotFound):
        pods.wire(machine.netlink, "/run/pwt-none", node_side(1, Path("/run/pwt-none")), pod_side(1))


@pytest.mark.parametrize("inside", [False, True])
def test_an_interface_index_in_use_is_replaced(machine: Machine, inside: bool) -> None:
    with Netlink(machine.pods[0] if inside else machine.node) as where:
        network.add(where, NetworkState((Link("other", "bridge", index=pods.derived_index("pod1")),))).check()
    machine.ready(1)
    assert network.read_link(machine.netlink, "pod1").index == pods.derived_index("pod1", 1)
    with Netlink(machine.pods[0] if inside else machine.node) as where:
        assert network.read_link(where, "other").alias == ""


def test_a_pod_is_attached_to_a_bridge(machine: Machine) -> None:
    bridge = NetworkState((Link("lo"), Link("br0", "bridge")), (Address("br0", "10.9.0.1/24"),))
    network.apply(machine.netlink, bridge, OwnerMark(200)).check()
    place = str(machine.pods[0])
    node = NetworkState((Link("pod1", "veth", master="br0", hairpin=True, peer="eth0", peer_netns=place),))
    pod = NetworkState((Link("eth0"),), (Address("eth0", "10.9.0.2/24"),))
    pods.wire(machine.netlink, place, node, pod)
    (link,) = [x for x in network.read_links(machine.netlink) if x.name == "pod1"]
    assert (link.master, link.hairpin) == ("br0", True)


def test_unwired_pods_disconnect_at_once_and_are_deleted_later(machine: Machine) -> None:
    for number in (1, 2, 3):
        machine.ready(number)
    pods.unwire(machine.netlink, [node_side(number, machine.pods[number - 1]) for number in (1, 2)])
    remaining = network.read(machine.netlink)
    assert {x.link for x in remaining.routes} | {x.link for x in remaining.neighbours} == {"pod3"}
    with pytest.raises(OSError):
        connect(machine, 3, 1, v6=False)
    assert pods.sweep(machine.node)
    assert {x.name for x in network.read_links(machine.netlink)} == {"lo", "pod3"}
    assert not pods.sweep(machine.node)
    pods.unwire(machine.netlink, [node_side(1, machine.pods[0])])
    machine.ready(1)
    assert connect(machine, 3, 1, v6=False) == "10.244.0.3"


def test_a_wired_pod_cannot_send_with_a_false_source(machine: Machine) -> None:
    """rp_filter on the node's end drops packets whose source is not the address of the pod."""
    machine.ready(1)
    machine.ready(2)
    with Netlink(machine.pods[0]) as pod:
        network.add(pod, NetworkState(addresses=(Address("eth0", "10.244.0.77/32"),))).check()
    with (
        socket_in(machine.pods[1], socket.AF_INET, socket.SOCK_DGRAM, blocking=True) as server,
        socket_in(machine.pods[0], socket.AF_INET, socket.SOCK_DGRAM, blocking=True) as client,
    ):
        server.bind(("10.244.0.2", 53))
        server.settimeout(0.3)
        client.bind(("10.244.0.77", 0))
        client.sendto(b"false", ("10.244.0.2", 53))
        with pytest.raises(TimeoutError):
            server.recv(100)
