"""Addresses of load balancers in the kernel: who answers ARP and NDP for them, until when, and what never answers."""

import os
import socket
import time
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.kernel.sockets import socket_in

from podwire.kernel import netns, network, sysctl
from podwire.kernel.leased_addresses import LeasedAddress, read, renew
from podwire.kernel.neighbour_announcement import announcement, announcement_by_reply
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.loadbalancer.devices import AnsweringDevices
from podwire.loadbalancer.guard import TABLE, guard_table
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

OWN = ("192.0.2.1", "2001:db8::1")
VIPS = ("192.0.2.100", "2001:db8::100")
LEASED = tuple(LeasedAddress("eth0", vip) for vip in VIPS)
PORT = 7000
_ETH_P_ALL = 3


class TwoMachines(NamedTuple):
    """A node and a client on one link."""

    node: Path
    client: Path
    devices: AnsweringDevices


@pytest.fixture
def link(tmp_path: Path) -> Iterator[TwoMachines]:
    node, client = tmp_path / "node", tmp_path / "client"
    netns.create(client)
    netns.create(node)
    ends = ((node, "eth0", "1"), (client, "far", "2"))
    for place, name, number in ends:
        ip = (f"192.0.2.{number}/24", f"2001:db8::{number}/64")
        veth = Link(name="eth0", kind="veth", peer="far", peer_netns=str(client), alias="test")
        links = (Link(name="lo"), veth if place is node else Link(name="far", alias="test"))
        state = NetworkState(links=links, addresses=tuple(Address(link=name, cidr=cidr) for cidr in ip))
        with Netlink(place) as netlink:
            network.apply(netlink, state, OwnerMark(113, "test")).check()
    devices = AnsweringDevices(lambda: OWN, node)
    yield TwoMachines(node, client, devices)
    devices.close()
    netns.delete(node)
    netns.delete(client)


def connects(machines: TwoMachines, address: str, patience_s: float = 5.0) -> str:
    """The result of a connection from the client: ``open``, ``refused``, ``unreachable`` or ``silent``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket_in(machines.client, family, blocking=True) as sock:
        sock.settimeout(patience_s)
        try:
            sock.connect((address, PORT))
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "silent"
        except OSError:
            return "unreachable"
    return "open"


def test_the_kernel_answers_for_the_addresses_alone(link: TwoMachines) -> None:
    assert link.devices.own_device() == "eth0"
    assert link.devices.renew(LEASED, 60) == ()
    assert link.devices.read() == set(LEASED)
    assert [connects(link, vip) for vip in VIPS] == ["refused", "refused"]
    assert [connects(link, other) for other in ("192.0.2.101", "2001:db8::101")] == ["unreachable"] * 2
    assert link.devices.remove(LEASED) == link.devices.remove(LEASED) == ()
    assert link.devices.read() == frozenset()


def test_answers_end_with_the_lifetime(link: TwoMachines) -> None:
    """The agent is gone: nobody renews or removes."""
    with Netlink(link.node) as netlink:
        renew(netlink, LEASED, 1)
        assert read(netlink) == set(LEASED)
        until = time.monotonic() + 30
        while read(netlink) and time.monotonic() < until:
            time.sleep(0.05)
        assert read(netlink) == frozenset()
    assert [connects(link, vip) for vip in VIPS] == ["unreachable", "unreachable"]


def test_renewals_extend_the_lifetime_without_a_gap(link: TwoMachines) -> None:
    with Netlink(link.node) as netlink:
        for _ in range(8):
            assert renew(netlink, LEASED, 2) == ()
            time.sleep(0.4)
            assert read(netlink) == set(LEASED)


def test_addresses_are_used_for_no_connection_of_the_node(link: TwoMachines) -> None:
    link.devices.renew(LEASED, 60)
    for target, own in zip(("192.0.2.2", "2001:db8::2"), OWN, strict=True):
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        with socket_in(link.node, family, socket.SOCK_DGRAM) as sock:
            sock.connect((target, 9))
            assert sock.getsockname()[0] == own


def test_arp_replies_only_where_strict_arp_allows(link: TwoMachines) -> None:
    """IPVS with strictARP lets a device answer for its own addresses only, and the address is on the device."""
    sysctl.write("net/ipv4/conf/all/arp_ignore", "1", link.node)
    link.devices.renew(LEASED, 60)
    assert connects(link, VIPS[0]) == "refused"


def test_an_address_is_announced_to_the_link(link: TwoMachines) -> None:
    link.devices.renew(LEASED, 60)
    with netns.inside(link.client):
        receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    with receiver:
        receiver.bind(("far", _ETH_P_ALL))
        receiver.settimeout(10)
        assert link.devices.announce(LEASED) == 2
        with Netlink(link.node) as netlink:
            mac = bytes.fromhex(network.read_link(netlink, "eth0").mac.replace(":", ""))
        four, six = (ip_address(vip) for vip in VIPS)
        assert isinstance(four, IPv4Address) and isinstance(six, IPv6Address)
        missing = {announcement(mac, four), announcement_by_reply(mac, four), announcement(mac, six)}
        while missing:
            missing.discard(receiver.recv(2000))


def test_programs_of_the_node_do_not_answer_behind_the_guard(link: TwoMachines) -> None:
    with socket_in(link.node, socket.AF_INET6, blocking=True) as server:
        server.bind(("::", PORT))
        server.listen()
        link.devices.renew(LEASED, 60)
        assert [connects(link, vip) for vip in VIPS] == ["open", "open"]
        with Nft(link.node) as nft:
            nft.apply(guard_table([ip_address(vip) for vip in VIPS]))
            assert [connects(link, vip, 0.3) for vip in VIPS] == ["silent", "silent"]
            assert [connects(link, own) for own in OWN] == ["open", "open"]
            drops = sum(packets for packets, _ in nft.counters("inet", TABLE).values())
            assert drops >= 2


def test_failures_name_the_address(link: TwoMachines) -> None:
    failures = link.devices.renew([LeasedAddress("nothere", VIPS[0]), LEASED[0]], 60)
    assert [str(failure.subject) for failure in failures] == ["address 192.0.2.100 dev nothere"]
    assert link.devices.read() == {LEASED[0]}
