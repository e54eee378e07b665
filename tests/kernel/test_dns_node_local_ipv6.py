"""Queries over IPv6 to a node's own server: the rules and routes of the node with real packets, without an agent.

The server of the cluster is another socket of the node, to which a rule translates the address of the DNS Service.
"""

import os
import resource
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import inside

from podwire.dns.nodelocal.plan import OWNER, TABLE, plan_routes, plan_table
from podwire.dns.nodelocal.runner import NodeLocalRules, remove_rules
from podwire.dns.sockets import Bound, bind, take_queries
from podwire.errors import KernelError
from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.runtime.clock import SystemClock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SERVICE, REPLICA, GATEWAY, POD, OTHER = "fd96::a", "fd96::99", "fd44::1", "fd44::5", "fd44::6"
LIMIT_S = 10
TRANSLATE = f"""
table ip6 cluster {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
        ip6 daddr {SERVICE} meta l4proto {{ tcp, udp }} th dport 53 dnat to {REPLICA}
    }}
}}
"""


class Node:
    """A node with one pod, which has two addresses; only the first one may use the node's own server."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.place, self.pod = folder / "node", folder / "pod"
        self._stack = stack
        for path in (self.place, self.pod):
            netns.create(path)
            stack.callback(netns.delete, path)
            inside(path, "sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
            inside(path, "ip", "link", "set", "lo", "up")
        inside(self.place, "ip", "link", "add", "pw1", "type", "veth", "peer", "name", "eth0")
        subprocess.run(
            ["nsenter", f"--net={self.place}", "ip", "link", "set", "eth0", "netns", str(self.pod)], check=True
        )
        self._address(self.place, "pw1", GATEWAY)
        self._address(self.place, "lo", REPLICA)
        for address in (POD, OTHER):
            self._address(self.pod, "eth0", address)
        inside(self.pod, "ip", "-6", "route", "add", "default", "via", GATEWAY)
        subprocess.run(["nsenter", f"--net={self.place}", "nft", "-f", "-"], input=TRANSLATE, text=True, check=True)
        self.replica = self._bind(REPLICA)
        self.own = self._bind(SERVICE)

    def _address(self, place: Path, device: str, address: str) -> None:
        inside(place, "ip", "address", "add", f"{address}/64" if device != "lo" else f"{address}/128", "dev", device)
        inside(place, "ip", "link", "set", device, "up")

    def _bind(self, address: str) -> Bound:
        with netns.inside(self.place):
            (bound,) = bind((address,), 53, early=address == SERVICE)
        self._stack.callback(bound.close)
        return bound

    def apply(self) -> None:
        """Writes the routes and the rules."""
        with Netlink(self.place) as netlink, Nft(self.place) as nft:
            network.apply(netlink, plan_routes([SERVICE], [GATEWAY]), OWNER).check()
            nft.apply(plan_table(SERVICE, {"pw1": (POD,)}))

    def client(self, kind: socket.SocketKind, source: str) -> socket.socket:
        with netns.inside(self.pod):
            link = self._stack.enter_context(socket.socket(socket.AF_INET6, kind))
        link.bind((source, 0))
        link.settimeout(LIMIT_S)
        link.connect((SERVICE, 53))
        return link

    def ask(self, source: str = POD) -> str:
        """Sends a query over UDP; returns which server got it, when the reply has arrived at the client."""
        link = self.client(socket.SOCK_DGRAM, source)
        link.send(b"query")
        servers = {self.own.udp: "own", self.replica.udp: "cluster"}
        (server, *_), _, _ = select.select(servers, [], [], LIMIT_S)
        data, peer = server.recvfrom(512)
        assert (data, peer[0]) == (b"query", source)
        server.sendto(servers[server].encode(), peer)
        assert link.recv(512).decode() == servers[server]
        return servers[server]

    def connect(self) -> tuple[socket.socket, socket.socket, str]:
        """Opens a connection; returns both of its ends, and which server has accepted it."""
        link = self.client(socket.SOCK_STREAM, POD)
        servers = {self.own.tcp: "own", self.replica.tcp: "cluster"}
        (server, *_), _, _ = select.select(servers, [], [], LIMIT_S)
        accepted = self._stack.enter_context(server.accept()[0])
        accepted.settimeout(LIMIT_S)
        return link, accepted, servers[server]

    def tracked(self) -> list[str]:
        with netns.inside(self.place):
            lines = Path("/proc/thread-self/net/nf_conntrack").read_text().splitlines()
        return [line for line in lines if "dport=53 " in line]


def exchange(link: socket.socket, accepted: socket.socket) -> None:
    for sender, receiver in ((link, accepted), (accepted, link)):
        sender.sendall(b"data")
        assert receiver.recv(4, socket.MSG_WAITALL) == b"data"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(tmp_path, stack)


def test_queries_change_over_in_both_directions(node: Node) -> None:
    node.apply()
    assert node.ask() == "cluster", "the server does not take queries yet"
    assert node.tracked()
    take_queries([node.own], enabled=True)
    inside(node.place, "conntrack", "-F")
    assert [node.ask() for _ in range(5)] == ["own"] * 5
    assert not node.tracked()
    assert node.ask(OTHER) == "cluster", "only addresses without egress policy reach the server"
    take_queries([node.own], enabled=False)
    assert node.ask() == "cluster"


def test_connections_stay_where_they_began(node: Node) -> None:
    node.apply()
    first = node.connect()
    take_queries([node.own], enabled=True)
    second = node.connect()
    take_queries([node.own], enabled=False)
    third = node.connect()
    assert [name for _, _, name in (first, second, third)] == ["cluster", "own", "cluster"]
    for link, accepted, _ in (first, second, third):
        exchange(link, accepted)


def test_pod_with_a_new_policy_is_taken_out_at_once(node: Node) -> None:
    node.apply()
    take_queries([node.own], enabled=True)
    rules = NodeLocalRules(SystemClock(), lambda: [SERVICE], lambda: [GATEWAY])
    with netns.inside(node.place):
        rules.narrow({"pw1": (POD,)})
    assert node.ask() == "own"
    with netns.inside(node.place):
        rules.narrow({})
    assert node.ask() == "cluster"


def test_refused_removal_of_a_pod_is_tried_again(node: Node) -> None:
    """Without a descriptor there is no socket to the kernel, so the first call fails, and the policies wait."""
    node.apply()
    take_queries([node.own], enabled=True)
    rules = NodeLocalRules(SystemClock(), lambda: [SERVICE], lambda: [GATEWAY])
    rules.widen({"pw1": (POD,)})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with netns.inside(node.place):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(KernelError):
                rules.narrow({})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        rules.narrow({})
    assert node.ask() == "cluster"


def test_removal_leaves_no_rule_and_no_route(node: Node) -> None:
    node.apply()
    assert "proto 117" in inside(node.place, "ip", "-6", "route", "show", "table", "local")
    with netns.inside(node.place):
        remove_rules()
    assert TABLE not in inside(node.place, "nft", "list", "tables")
    assert "proto 117" not in inside(node.place, "ip", "-6", "route", "show", "table", "local")
    take_queries([node.own], enabled=True)
    assert node.ask() == "cluster"
