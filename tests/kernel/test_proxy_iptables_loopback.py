"""Node ports on loopback in mode iptables, for both kinds: answers, the guard, and what is left behind."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest
from tests.cases.service_table import NODE
from tests.kernel.service_namespaces import (
    World,
    by_name,
    inside,
    path,
)
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns, sysctl
from podwire.kernel.iptables import find
from podwire.kernel.nfacct import Counters
from podwire.proxy.dataplane import INVALID_DROPPED, LOCALHOST_ACCEPTED
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane, clear
from podwire.proxy.servicemap import NodeFacts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture(params=["nft", "legacy"])
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[ServiceOwner]:
    programs = find(request.param)
    assert programs is not None, f"Debian's iptables has the programs of {request.param}"
    service_owner = ServiceOwner(IptablesDataPlane(NODE, path("node"), programs))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def everywhere() -> NodeFacts:
    return msgspec.structs.replace(NODE, node_port_ranges=("0.0.0.0/0", "::/0"))


@pytest.mark.parametrize("policy", ["NodePort with policy Cluster", "externalTrafficPolicy Local"])
def test_node_ports_answer_on_loopback_when_configured(world: World, plane: ServiceOwner, policy: str) -> None:
    case = by_name(policy)
    plane.load(case.resolved(), everywhere())
    assert not any(plane.load(case.resolved()))
    before = plane.counts().packets[LOCALHOST_ACCEPTED]
    results = {world.connect("node", "127.0.0.1", 30080) for _ in range(24)}
    assert {pod for pod, _ in results} == {"two", "far"}
    assert plane.counts().packets[LOCALHOST_ACCEPTED] == before + 24
    assert world.connect("node", "::1", 30080)[0] == "refused"
    assert world.connect("outside", "192.168.99.1", 30080)[0] in ("two", "far")
    assert plane.counts().packets[LOCALHOST_ACCEPTED] == before + 24
    plane.load(case.resolved(), NODE)
    assert world.connect("node", "127.0.0.1", 30080)[0] == "refused"
    assert sysctl.read(ROUTE_LOCALNET, path("node")) == "0"


def test_loopback_is_guarded_while_it_is_routed(world: World, plane: ServiceOwner) -> None:
    """Hosts on the network cannot reach servers that listen only on loopback (CVE-2020-8558)."""
    with netns.inside(path("node")), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(0.3)

        def reached() -> bool:
            send_to_loopback(listener.getsockname()[1])
            try:
                return listener.recv(10) == b"intruder"
            except TimeoutError:
                return False

        assert not reached()
        plane.load(by_name("ClusterIP").resolved(), everywhere())
        assert sysctl.read(ROUTE_LOCALNET, path("node")) == "1"
        assert not reached()
        inside("node", plane.programs.restore["ip"].removesuffix("-restore"), "-F", "KUBE-LOOPBACK")
        assert reached(), "it is the rule that guards"
        plane.remove()
        assert not reached()
        assert sysctl.read(ROUTE_LOCALNET, path("node")) == "0"


def test_loopback_settings_of_an_earlier_run_are_removed(world: World, plane: ServiceOwner) -> None:
    plane.load(by_name("NodePort with policy Cluster").resolved(), everywhere())
    with Counters(path("node")) as counters:
        assert {INVALID_DROPPED, LOCALHOST_ACCEPTED} <= counters.packets().keys()
        assert clear(path("node"))
        assert not {INVALID_DROPPED, LOCALHOST_ACCEPTED} & counters.packets().keys()
    assert sysctl.read(ROUTE_LOCALNET, path("node")) == "0"
    assert not clear(path("node"))


def test_a_start_without_loopback_closes_loopback_of_an_earlier_run(world: World, plane: ServiceOwner) -> None:
    case = by_name("NodePort with policy Cluster").resolved()
    plane.load(case, everywhere())
    with contextlib.closing(IptablesDataPlane(NODE, path("node"), plane.programs)) as again:
        again.load(case)
    assert sysctl.read(ROUTE_LOCALNET, path("node")) == "0"
    assert "KUBE-LOOPBACK" not in inside("node", plane.programs.save["ip"])


def send_to_loopback(port: int) -> None:
    """Sends a datagram from outside to 127.0.0.1 of the node."""
    source, target = socket.inet_aton("192.168.99.2"), socket.inet_aton("127.0.0.1")
    payload = b"intruder"
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 1, 0, 64, 17, 0)
    total = sum(struct.unpack("!10H", head + source + target))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~total & 0xFFFF)
    datagram = struct.pack("!HHHH", 40000, port, 8 + len(payload), 0) + payload
    frame = bytes.fromhex("020000000100020000000200") + b"\x08\x00" + head + source + target + datagram
    with netns.inside(path("outside")), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind(("eth0", 0))
        raw.send(frame)
