"""Stale flows: an endpoint of a UDP Service goes, and the kernel forgets the flows that were translated to it.

A namespace tracks 3,000 to a million flows (made by netlink, every tenth TCP) to 1,000 Services with three endpoints
each. One Service loses an endpoint: the time is what the proxy takes to find the flows that lead nowhere and have them
forgotten. Beside it conntrack(8) is told to delete the same. Afterwards the flows are counted: no other may be gone.
The machine's limit of tracked connections is raised for the time of the measurement.

    sudo python -m bench.flows [--quick]
"""

import resource
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.alone import run_alone
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.attributes import attribute, be16, nested, u8
from podwire.kernel.conntrack import Ends, occupancy
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import (
    AF_INET,
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
    NLM_F_CREATE,
)
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.servicemap import ResolvedPort
from podwire.state.address import pack_ip

FRONTENDS, BACKENDS = 1000, 3
RUNS = 5
_LIMIT = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_IPCTNL_MSG_CT_NEW = 0
_IPS_CONFIRMED_AND_ANSWERED = 0x8 | 0x2
_CHUNK = 5000


def ends(number: int) -> tuple[str, Ends, Ends]:
    """Protocol and both directions of a flow of that number."""
    front, backend = number % FRONTENDS, number // FRONTENDS % BACKENDS
    client, port = (
        f"10.{128 + number // 4_000_000}.{number // 16_000 % 250}.{number // 64_000_000 + 1}",
        number % 16_000,
    )
    address, endpoint = frontend(front), f"10.2.{front // 250}.{front % 250}"
    there = Ends(client, address, 1024 + port, 53)
    return "TCP" if number // FRONTENDS % 10 == 9 else "UDP", there, Ends(endpoint, client, 5300 + backend, 1024 + port)


def frontend(number: int) -> str:
    """The address of a Service."""
    return f"10.96.{number // 250}.{number % 250}"


def service(number: int, backends: int) -> ResolvedPort:
    """A Service with the first of its endpoints."""
    return ResolvedPort(
        service=f"default/s{number}",
        port_name="",
        protocol="udp",
        family="ip",
        port=53,
        cluster_ip=frontend(number),
        serving=frozenset(f"10.2.{number // 250}.{number % 250}:{5300 + backend}" for backend in range(backends)),
    )


def track(netns_path: Path, numbers: range) -> None:
    """Has the kernel track these flows for ten minutes; those that it tracks already stay."""
    kind = NFNL_SUBSYS_CTNETLINK << 8 | _IPCTNL_MSG_CT_NEW
    with Netlink(netns_path, NETLINK_NETFILTER) as netlink:
        for at in range(0, len(numbers), _CHUNK):
            messages = [Message(kind, NLM_F_CREATE, _encode(n), "track", n) for n in numbers[at : at + _CHUNK]]
            for failure in netlink.batch(messages).values():
                raise failure


def _encode(number: int) -> bytes:
    protocol, original, reply = ends(number)
    return b"".join((
        struct.pack("!BBH", AF_INET, 0, 0),
        _tuple(CTA_TUPLE_ORIG, protocol, original),
        _tuple(CTA_TUPLE_REPLY, protocol, reply),
        attribute(CTA_STATUS, struct.pack("!I", _IPS_CONFIRMED_AND_ANSWERED)),
        attribute(CTA_TIMEOUT, struct.pack("!I", 600)),
        nested(4, nested(1, u8(1, 3))) if protocol == "TCP" else b"",  # CTA_PROTOINFO_TCP_STATE: established
    ))  # fmt: skip


def _tuple(kind: int, protocol: str, ends: Ends) -> bytes:
    ip = attribute(CTA_IP_V4_SRC, pack_ip(ends.src)) + attribute(CTA_IP_V4_DST, pack_ip(ends.dst))
    number = u8(CTA_PROTO_NUM, 6 if protocol == "TCP" else 17)
    ports = be16(CTA_PROTO_SRC_PORT, ends.sport) + be16(CTA_PROTO_DST_PORT, ends.dport)
    return nested(kind, nested(CTA_TUPLE_IP, ip), nested(CTA_TUPLE_PROTO, number, ports))


def stale(count: int, number: int) -> list[int]:
    """Which flows lead nowhere when that Service loses the last of its endpoints."""
    return [
        flow
        for flow in range(number, count, FRONTENDS)
        if flow // FRONTENDS % BACKENDS == BACKENDS - 1 and flow // FRONTENDS % 10 != 9
    ]


def count(netns_path: Path) -> int:
    """How many flows the namespace has."""
    occupied = occupancy(netns_path)
    assert occupied is not None
    return occupied.entries


@contextmanager
def room(flows: int) -> Iterator[None]:
    """Room for so many flows in one namespace."""
    before = int(_LIMIT.read_text())
    _LIMIT.write_text(str(max(before, flows + 10_000)))
    try:
        yield
    finally:
        _LIMIT.write_text(str(before))


def timed(action: Callable[..., object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def measure(netns_path: Path, flows: int) -> list[Row]:
    track(netns_path, range(flows))
    numbers = stale(flows, 10)
    own: list[float] = []
    peer: list[float] = []
    deleted_others = 0
    address = frontend(10)
    command = ["conntrack", "-D", "-p", "udp", "--orig-dst", address, "--orig-port-dst", "53",
               "--reply-port-src", str(5300 + BACKENDS - 1)]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(RUNS):
        for ms, action in ((own, forget_own), (peer, lambda _: run(netns_path, command))):
            had = count(netns_path)
            ms.append(timed(lambda action=action: action(netns_path)))
            deleted_others += had - count(netns_path) - len(numbers)
            for number in numbers:
                track(netns_path, range(number, number + 1))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    title = f"{len(numbers):,} of {flows:,} flows forgotten"
    return [
        Row(title, "ms", tuple(own), (("conntrack -D", tuple(peer)),)),
        Row(f"{title}: others gone", "", (float(deleted_others),), aim=0),
        Row(f"{title}: memory taken", "MB", (grown,)),
    ]


def forget_own(netns_path: Path) -> None:
    forget = flow_cleaner(lambda: (), netns_path)((service(10, BACKENDS),), (service(10, BACKENDS - 1),))
    assert forget is not None
    forget()


def run(netns_path: Path, command: list[str]) -> None:
    with netns.inside(netns_path):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure_all(quick: bool) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for flows in (1_000 * BACKENDS, 100_000) if quick else (1_000 * BACKENDS, 100_000, 1_000_000):
            netns_path = Path(folder) / "node"
            netns.create(netns_path)
            try:
                with room(flows):
                    rows += measure(netns_path, flows)
            finally:
                netns.delete(netns_path)
    return rows


if __name__ == "__main__":
    run_alone("flows", __doc__, measure_all)
