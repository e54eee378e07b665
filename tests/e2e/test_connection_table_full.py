"""When the conntrack table of a node is full, connections go on, new ones are dropped and the Node reports it.

The limit is the machine's and counts for each network namespace by itself; the test fills that of the first node.
"""

import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import done, in_node, netns_of, topology
from tests.e2e.driver import Cluster, eventually
from tests.e2e.handwritten_endpoints import answered, switch

from podwire.kernel import netns
from podwire.kernel.attributes import attribute, be16, nested, u8
from podwire.kernel.conntrack import occupancy
from podwire.kernel.uapi import (
    CTA_IP_V4_DST,
    CTA_IP_V4_SRC,
    CTA_PROTO_DST_PORT,
    CTA_PROTO_NUM,
    CTA_PROTO_SRC_PORT,
    CTA_STATUS,
    CTA_TIMEOUT,
    CTA_TUPLE_IP,
    CTA_TUPLE_ORIG,
    CTA_TUPLE_PROTO,
    CTA_TUPLE_REPLY,
    NETLINK_NETFILTER,
    NFNL_SUBSYS_CTNETLINK,
)

LINE = b"podwire-probe\n"
NOBODY = socket.inet_aton("192.0.2.1")
FORGET = "conntrack -D -p udp --orig-dst 192.0.2.1"
"""Deletes the entries; the exit status is 1 where there are none."""
_REQUEST, _EXCLUSIVE_CREATE = 0x1, 0x600
_SEEN_ASSURED_CONFIRMED = 0x2 | 0x4 | 0x8
"""What is assured is not evicted for others."""


def entry(number: int) -> bytes:
    """The netlink request for a conntrack entry of a UDP flow that does not exist."""
    client = struct.pack("!I", 0x0B000000 + number)

    def ends(kind: int, source: bytes, target: bytes) -> bytes:
        addresses = attribute(CTA_IP_V4_SRC, source) + attribute(CTA_IP_V4_DST, target)
        ports = u8(CTA_PROTO_NUM, socket.IPPROTO_UDP) + be16(CTA_PROTO_SRC_PORT, 7) + be16(CTA_PROTO_DST_PORT, 7)
        return nested(kind, nested(CTA_TUPLE_IP, addresses), nested(CTA_TUPLE_PROTO, ports))

    body = struct.pack("!BBH", socket.AF_INET, 0, 0)
    body += ends(CTA_TUPLE_ORIG, client, NOBODY) + ends(CTA_TUPLE_REPLY, NOBODY, client)
    body += attribute(CTA_STATUS, struct.pack("!I", _SEEN_ASSURED_CONFIRMED))
    body += attribute(CTA_TIMEOUT, struct.pack("!I", 600))
    head = struct.pack("=IHHII", 16 + len(body), NFNL_SUBSYS_CTNETLINK << 8, _REQUEST | _EXCLUSIVE_CREATE, number, 0)
    return head + body


def fill(place: Path) -> None:
    """Creates entries until the table is full."""
    with netns.inside(place):
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    with sock:
        sock.bind((0, 0))
        number = 0
        while (result := occupancy(place)) and result.entries < result.limit:
            sock.send(b"".join(map(entry, range(number, number + 500))))
            number += 500


def connect(place: Path, address: str, patience_s: float = 20) -> socket.socket:
    with netns.inside(place):
        sock = socket.socket()
    sock.settimeout(patience_s)
    try:
        sock.connect((address, 80))
    except OSError:
        sock.close()
        raise
    return sock


def answers(sock: socket.socket) -> bool:
    sock.sendall(LINE)
    return b"pod" in sock.recv(4096)


def dropped_when_full(node: Path, client: Path, address: str) -> bool:
    """Whether a connection is dropped right after the table was filled; entries of other flows may end meanwhile."""
    fill(node)
    try:
        connect(client, address, 2).close()
    except TimeoutError:
        return True
    return False


def event_messages(cluster: Cluster) -> list[Any]:
    selector = "involvedObject.kind=Node,involvedObject.name=node-1,reason=ConnectionTableFull"
    return [event["message"] for event in cluster.get("events", "-A", "--field-selector", selector)["items"]]


@pytest.fixture(scope="module")
def cluster(services_cluster: Cluster) -> Cluster:
    switch(services_cluster, "nftables")
    return services_cluster


def test_a_full_table(cluster: Cluster) -> None:
    with ExitStack() as open_ones:
        place, client = Path(topology(cluster).netns("node-1")), netns_of(cluster, "client")
        address = cluster.get("service", "web")["spec"]["clusterIP"]
        eventually(lambda: answered(cluster, address))
        standing = [open_ones.enter_context(connect(client, address)) for _ in range(5)]
        assert all(map(answers, standing))
        open_ones.callback(in_node, cluster, "node-1", "sh", "-c", f"{FORGET} || true")
        eventually(lambda: dropped_when_full(place, client, address))
        assert all(map(answers, standing))
        eventually(lambda: any("new connections are dropped" in text for text in event_messages(cluster)))
        assert "new connections are dropped; raise proxy.conntrack" in done("status", "--name", cluster.name)
        in_node(cluster, "node-1", *FORGET.split())
        connect(client, address).close()
        assert all(map(answers, standing))
        metrics = in_node(cluster, "node-1", "curl", "-s", "http://127.0.0.1:9440/metrics")
        counts = dict(line.split() for line in metrics.splitlines() if line.startswith("podwire_conntrack_"))
        assert float(counts["podwire_conntrack_dropped_total"]) >= 1
        assert 0 < float(counts["podwire_conntrack_entries"]) < 0.9 * float(counts["podwire_conntrack_limit"])
