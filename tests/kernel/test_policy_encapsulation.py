"""Encapsulated packets of pods: those that a node would unpack are dropped, those for another pod pass.

The node's tunnel is a VXLAN device as any overlay has it. A pod that may reach nothing of the sort sends it a packet
whose inside says that it comes from a pod which may: past the tunnel, policies see the inside alone.
"""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.kernel.policy_checks import OPEN, policy
from tests.kernel.policy_namespaces import ADDRESSES, FACTS, RANGES, World, batch, inside, path
from tests.kernel.test_policy_packets import Planes, compilers, opened

from podwire.kernel import netns
from podwire.policy.compile import Compiler
from podwire.policy.registry import DATAPLANES
from podwire.policy.settings import ENCAPSULATION_PORTS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FAMILIES = ("ip", "ip6")
EVERYWHERE = tuple(text for ranges in RANGES.values() for text in ranges)
MAC = "02:00:00:03:00:02"
PORT = 9999
THIEF, ALLOWED = ("10.180.0.2", "fd18::2"), ("10.180.0.1", "fd18::1")
GUARDED, OTHER = ("10.180.1.3", "fd18:1::3"), ("10.180.1.2", "fd18:1::2")
ONLY_WEB = policy(
    "ops/only-web",
    podSelector={},
    ingress=[{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}]}],
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(OPEN)
        for name, (four, six) in ADDRESSES.items():
            for number, local in enumerate((four, six)):
                device = f"tunnel{number}"
                kind = f"type vxlan id {number + 7} dstport 4789 local {local} dev eth0 nolearning"
                batch(name, [f"link add {device} address {MAC} {kind}", f"link set {device} up"])
                inside(name, "sysctl", "-qw", f"net.ipv4.conf.{device}.rp_filter=0")
        yield created


@pytest.fixture(scope="module", params=tuple(DATAPLANES))
def planes(world: World, request: pytest.FixtureRequest) -> Iterator[Planes]:
    created = opened(request.param)
    yield created
    for plane in created.values():
        plane.remove()
        plane.close()


def enforce(planes: Planes, world: World, *, guarded: bool) -> None:
    """Loads the policy of ``ops`` into both nodes, with or without the rule about encapsulation."""
    created = compilers(OPEN)
    for node, plane in planes.items():
        compiler: Compiler = created[node]
        compiler.set_policy("ops/only-web", ONLY_WEB)
        compiler.flush()
        ports = ENCAPSULATION_PORTS if guarded else ()
        facts = replace(FACTS[node], cluster_ranges=EVERYWHERE, encapsulation_ports=ports)
        plane.load(compiler, world.devices(node), facts)


def forged(family: str, source: str, target: str) -> bytes:
    """VXLAN's header, an Ethernet frame for the tunnel's device and a datagram between two addresses in it."""
    six = family == "ip6"
    vxlan = struct.pack("!II", 1 << 27, (7 + six) << 8)
    ethernet = bytes.fromhex(MAC.replace(":", "")) + b"\x02\0\0\0\0\x09" + struct.pack("!H", 0x86DD if six else 0x0800)
    inner = socket.AF_INET6 if six else socket.AF_INET
    ends = socket.inet_pton(inner, source) + socket.inet_pton(inner, target)
    datagram = struct.pack("!HHHH", 40000, PORT, 9, 0) + b"x"
    total = sum(struct.unpack("!" + "H" * (len(ends) // 2), ends)) + 17 + 9
    total += sum(struct.unpack("!5H", datagram + b"\0"))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    datagram = datagram[:6] + struct.pack("!H", ~total & 0xFFFF) + datagram[8:]
    if six:
        head = struct.pack("!IHBB", 6 << 28, len(datagram), 17, 64)
    else:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0)
        arguments = sum(struct.unpack("!6H", head)) + sum(struct.unpack("!4H", ends))
        arguments = (arguments & 0xFFFF) + (arguments >> 16)
        head = head[:10] + struct.pack("!H", ~((arguments & 0xFFFF) + (arguments >> 16)) & 0xFFFF)
    return vxlan + ethernet + head + ends + datagram


QUIET_S = 0.2
"""How long to wait for what is not to come."""


def of(family: str) -> tuple[socket.AddressFamily, int]:
    return (socket.AF_INET6, 1) if family == "ip6" else (socket.AF_INET, 0)


@contextlib.contextmanager
def listening(
    place: str, family: str, port: int, kind: int = socket.SOCK_DGRAM, protocol: int = 0
) -> Iterator[socket.socket]:
    with netns.inside(path(place)):
        created = socket.socket(of(family)[0], kind, protocol)
    with created:
        if kind == socket.SOCK_DGRAM:
            created.bind(("", port))
        yield created


def sent(place: str, family: str, target: str, payload: bytes, port: int = 4789) -> None:
    with netns.inside(path(place)):
        sock = socket.socket(of(family)[0], socket.SOCK_DGRAM)
    with sock, contextlib.suppress(OSError):
        sock.sendto(payload, (target, port))


def heard(sock: socket.socket, patience_s: float = 10.0) -> str:
    """The sender of the received packet; empty when none came."""
    sock.settimeout(patience_s)
    try:
        return str(sock.recvfrom(2048)[1][0])
    except TimeoutError:
        return ""


def dropped(planes: Planes, family: str, node: str) -> int:
    """The number of pods' packets that the rule about encapsulation has dropped."""
    if planes[node].name == "nftables":
        text = inside(node, "nft", "list", "ruleset", family)
    else:
        text = inside(node, "ip6tables-save" if family == "ip6" else "iptables-save", "-c")
    counts = [
        int(re.findall(r"packets (\d+)|\[(\d+):", line)[0][planes[node].name != "nftables"])
        for line in text.splitlines()
        if "policy.encapsulation: drop" in line
    ]
    assert len(counts) > 1
    return sum(counts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forged_tunnel_packet_is_dropped(world: World, planes: Planes, family: str) -> None:
    number = of(family)[1]
    packet = forged(family, ALLOWED[number], GUARDED[number])
    with listening("ops-scan", family, PORT) as guarded:
        enforce(planes, world, guarded=False)
        sent("shop-db", family, GUARDED[number], b"x", PORT)
        assert not heard(guarded, QUIET_S), "the pod itself may not"
        sent("shop-db", family, ADDRESSES["n2"][number], packet)
        assert heard(guarded) == ALLOWED[number], "the forgery works where nothing keeps it out"
        enforce(planes, world, guarded=True)
        sent("shop-db", family, ADDRESSES["n2"][number], packet)
        assert not heard(guarded, QUIET_S)
        assert dropped(planes, family, "n1") == 1
        enforce(planes, world, guarded=False)
        sent("shop-db", family, ADDRESSES["n2"][number], packet)
        assert heard(guarded), "the setting is taken back"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_node_does_not_decapsulate_packets_of_its_pods(world: World, planes: Planes, family: str) -> None:
    number = of(family)[1]
    packet = forged(family, "203.0.113.7" if family == "ip" else "2001:db8::7", OTHER[number])
    with listening("blog-web", family, PORT) as target:
        enforce(planes, world, guarded=False)
        sent("ops-scan", family, ADDRESSES["n2"][number], packet)
        assert heard(target), "the forgery works where nothing keeps it out"
        enforce(planes, world, guarded=True)
        sent("ops-scan", family, ADDRESSES["n2"][number], packet)
        assert not heard(target, QUIET_S)
        assert dropped(planes, family, "n2") == 1


def test_link_local_sources_do_not_reach_tunnels(world: World, planes: Planes) -> None:
    """A tunnel that listens on all addresses also gets packets that pods send with link-local addresses."""
    batch("n2", ["link set tunnel1 down", "link delete tunnel1"])
    batch("n2", [f"link add tunnel1 address {MAC} type vxlan id 8 dstport 4789 local :: nolearning"])
    batch("n2", ["link set tunnel1 up", "address add fe80::99/64 dev ops-scan nodad"])
    batch("ops-scan", ["address add fe80::77/64 dev eth0 nodad"])
    packet = forged("ip6", "2001:db8::7", OTHER[1])

    def send() -> None:
        with netns.inside(path("ops-scan")):
            sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            index = socket.if_nametoindex("eth0")
        with sock:
            sock.bind(("fe80::77", 0, 0, index))
            sock.sendto(packet, ("fe80::99", 4789, 0, index))

    try:
        with listening("blog-web", "ip6", PORT) as target:
            enforce(planes, world, guarded=False)
            send()
            assert heard(target), "the forgery works where nothing keeps it out"
            enforce(planes, world, guarded=True)
            send()
            assert not heard(target, QUIET_S)
            assert dropped(planes, "ip6", "n2") == 1
    finally:
        batch("ops-scan", ["address delete fe80::77/64 dev eth0"])
        batch("n2", ["address delete fe80::99/64 dev ops-scan", "link delete tunnel1"])
        kind = f"type vxlan id 8 dstport 4789 local {ADDRESSES['n2'][1]} dev eth0 nolearning"
        batch("n2", [f"link add tunnel1 address {MAC} {kind}", "link set tunnel1 up"])


@pytest.mark.parametrize("family", FAMILIES)
def test_encapsulated_packets_reach_only_pods(world: World, planes: Planes, family: str) -> None:
    """IP in IP, IPv6 in IP and GRE: this kernel unpacks none of them, so the outer packet must not arrive."""
    number = of(family)[1]
    targets = {"n2": ADDRESSES["n2"][number], "n1": ADDRESSES["n1"][number], "blog-web": OTHER[number]}

    def arrivals() -> dict[tuple[str, int], bool]:
        result = {}
        for protocol in (4, 41, 47):
            for place, address in targets.items():
                with listening(place, family, 0, socket.SOCK_RAW, protocol) as raw:
                    with netns.inside(path("shop-db")):
                        sock = socket.socket(of(family)[0], socket.SOCK_RAW, protocol)
                    with sock:
                        sock.sendto(b"\0" * 24, (address, 0))
                    result[place, protocol] = heard(raw, QUIET_S) == THIEF[number]
        return result

    enforce(planes, world, guarded=False)
    assert all(arrivals().values())
    enforce(planes, world, guarded=True)
    assert {place for (place, _), arrived in arrivals().items() if arrived} == {"blog-web"}


@pytest.mark.parametrize("family", FAMILIES)
def test_policies_decide_about_tunnels_between_pods(world: World, planes: Planes, family: str) -> None:
    number = of(family)[1]
    enforce(planes, world, guarded=True)
    for port in ENCAPSULATION_PORTS:
        with listening("blog-web", family, port) as near, listening("ops-scan", family, port) as guarded:
            sent("shop-db", family, OTHER[number], b"x", port)
            assert heard(near) == THIEF[number]
            sent("shop-db", family, GUARDED[number], b"x", port)
            assert not heard(guarded, QUIET_S), "no policy allows it"
            sent("shop-web", family, GUARDED[number], b"x", port)
            assert heard(guarded) == ALLOWED[number]


@pytest.mark.parametrize("family", FAMILIES)
def test_tunnels_and_replies_of_the_node_are_accepted(world: World, planes: Planes, family: str) -> None:
    number = of(family)[1]
    for guarded in (False, True):
        enforce(planes, world, guarded=guarded)
    packet = forged(family, "203.0.113.7" if family == "ip" else "2001:db8::7", OTHER[number])
    with listening("blog-web", family, PORT) as target:
        sent("n1", family, ADDRESSES["n2"][number], packet)
        assert heard(target), "what a node sends is unpacked"
    with listening("shop-db", family, 5300) as server, listening("outside", family, 8472) as client:
        client.sendto(b"x", (THIEF[number], 5300))
        assert heard(server)
        sent_back = server.sendto(b"y", ("192.168.99.9" if family == "ip" else "fd99::9", 8472))
        assert sent_back == 1
        assert heard(client) == THIEF[number], "an answer to a client that happens to use such a port"
    assert dropped(planes, family, "n1") == dropped(planes, family, "n2") == 0
