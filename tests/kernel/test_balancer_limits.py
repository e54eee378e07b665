"""Limits for clients of load balancers, with packets: connections, rates, and a flood of SYN packets."""

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.kernel.sockets import socket_in

from podwire.kernel import netns, network, sysctl
from podwire.kernel.features import Features
from podwire.kernel.leased_addresses import LeasedAddress, renew
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.loadbalancer.guard import TABLE, guard_table
from podwire.loadbalancer.protection import Protection
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address, Route

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

VIP, NODE, CLIENT, PORT = "192.0.2.100", "192.0.2.1", "192.0.2.2", 80
KEY = "shop/web"
BASE = Protection(key=KEY, addresses=(ip_address(VIP),), tcp_ports=(PORT,))
TRANSLATION = f"""table ip translation {{
  chain in {{ type nat hook prerouting priority -100; ip daddr {VIP} tcp dport {PORT} dnat to {NODE}:8080; }}
  chain own {{ type nat hook output priority -100; ip daddr {VIP} tcp dport {PORT} dnat to {NODE}:8080; }}
}}
"""


class Entry:
    """A node with the address and a server behind a translation, as the Service proxy has it, and a client."""

    def __init__(self, root: Path) -> None:
        self.node, self.client = root / "node", root / "client"
        netns.create(self.client)
        netns.create(self.node)
        for place, name, own in ((self.node, "eth0", NODE), (self.client, "far", CLIENT)):
            veth = Link(name="eth0", kind="veth", peer="far", peer_netns=str(self.client), alias="test")
            links = (Link(name="lo"), veth if place == self.node else Link(name="far", alias="test"))
            # Answers to addresses that do not exist go to the client, which drops them.
            routes = (Route(dst="198.18.0.0/15", via=CLIENT, link="eth0"),) if place == self.node else ()
            state = NetworkState(links=links, addresses=(Address(link=name, cidr=f"{own}/24"),), routes=routes)
            with Netlink(place) as netlink:
                network.apply(netlink, state, OwnerMark(113, "test")).check()
        with Netlink(self.node) as netlink:
            assert renew(netlink, [LeasedAddress("eth0", VIP)], 600) == ()
            self.mac = bytes.fromhex(network.read_link(netlink, "eth0").mac.replace(":", ""))
        command = ["nsenter", f"--net={self.node}", "nft", "-f", "-"]
        subprocess.run(command, input=TRANSLATION, text=True, check=True)
        self.server = socket_in(self.node, blocking=True)
        self.server.bind((NODE, 8080))
        self.server.listen(1024)
        self.accepted = 0
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def _serve(self) -> None:
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(self.server.accept()[0])
                except OSError:
                    return
                self.accepted += 1

    def protect(self, protection: Protection) -> None:
        with Nft(self.node) as nft:
            table = guard_table([ip_address(VIP)], [protection])
            nft.apply(table)
            assert not nft.apply(table), "the kernel holds the table, and it reads back"

    def counted(self, chain: str) -> int:
        with Nft(self.node) as nft:
            return nft.counters("inet", TABLE).get(f"{chain}-{KEY}", (0, 0))[0]

    def connect(self, patience_s: float = 10.0) -> socket.socket | None:
        sock = socket_in(self.client, blocking=True)
        sock.settimeout(patience_s)
        try:
            sock.connect((VIP, PORT))
        except TimeoutError:
            sock.close()
            return None
        return sock

    def flood(self, count: int) -> None:
        """Sends SYN packets from addresses that do not answer."""
        with netns.inside(self.client):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with sender:
            sender.bind(("far", 0))
            own = sender.getsockname()[4]
            for number in range(count):
                source = ip_address("198.18.0.0") + number
                sender.send(self.mac + own + b"\x08\x00" + syn_packet(source.packed, number))

    def connections(self) -> int:
        """How many connections the table of the node has."""
        path = "net/netfilter/nf_conntrack_count"
        return int(sysctl.snapshot((path,), self.node)[0].value)

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self.server.close()
        netns.delete(self.node)
        netns.delete(self.client)


def checksum(octets: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn_packet(source: bytes, number: int) -> bytes:
    """IPv4 and TCP of a SYN packet to the address."""
    target = ip_address(VIP).packed
    tcp = struct.pack("!HHIIBBHHH", 1024 + number % 60000, PORT, number, 0, 0x50, 2, 64240, 0, 0)
    pseudo = source + target + struct.pack("!BBH", 0, 6, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, number % 65536, 0, 64, 6, 0, source, target)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + tcp


@pytest.fixture
def entry(tmp_path: Path) -> Iterator[Entry]:
    created = Entry(tmp_path)
    yield created
    created.close()


def test_one_source_has_so_many_connections(entry: Entry) -> None:
    entry.protect(Protection(key=KEY, addresses=BASE.addresses, tcp_ports=BASE.tcp_ports, connections=3))
    with ExitStack() as stack:
        opened = [entry.connect() for _ in range(3)]
        for sock in opened:
            assert sock is not None
            stack.enter_context(sock)
        assert entry.connect(0.5) is None
        assert entry.counted("count") >= 1


def test_one_source_begins_so_many_connections(entry: Entry) -> None:
    limit = Protection(key=KEY, addresses=BASE.addresses, tcp_ports=BASE.tcp_ports, rate=5, unit="minute", burst=5)
    entry.protect(limit)
    with ExitStack() as stack:
        for _ in range(5):
            sock = entry.connect()
            assert sock is not None
            stack.enter_context(sock)
        assert entry.connect(0.5) is None
        assert entry.counted("rate") >= 1


def test_a_flood_of_syn_packets_reaches_nothing_behind_the_proxy(entry: Entry) -> None:
    if lack := Features().lacks("synproxy"):
        pytest.skip(lack)
    entry.protect(BASE)
    entry.flood(1000)
    assert entry.connections() > 500, "without the proxy the flood fills the connection table"

    for path, value in (("net/ipv4/tcp_syncookies", "1"), ("net/netfilter/nf_conntrack_tcp_loose", "0")):
        sysctl.write(path, value, entry.node)
    entry.protect(Protection(key=KEY, addresses=BASE.addresses, tcp_ports=BASE.tcp_ports, syn_proxy=True))
    subprocess.run(["nsenter", f"--net={entry.node}", "conntrack", "-F"], check=True, capture_output=True)
    before = entry.accepted
    flood = threading.Thread(target=lambda: entry.flood(20000))
    flood.start()
    with ExitStack() as stack:
        for _ in range(100):
            sock = entry.connect()
            assert sock is not None, "a client connects during the flood"
            stack.enter_context(sock)
        flood.join()
        assert entry.accepted - before <= 100
        assert entry.connections() < 500
        assert entry.counted("syn") > 10000
