"""Connection tracking: flows of a namespace, listed and forgotten (ctnetlink).

Needed where the kernel remembers what is no longer so: a UDP flow that was translated to an endpoint that is gone
goes on to it as long as packets come; a pod's address that is given out again would meet the flows of the old pod.
Deleting an entry does not break TCP by itself: the next packet is looked up anew.

The kernel's own filter (CTA_FILTER, 5.8) is used for the protocol, for where flows were sent, the ``target``, and
(CTA_STATUS, newer) for whether they are assured; it knows no "either direction", so for that addresses are looked for
in the bytes before anything is decoded. Older kernels list everything, and what is not meant is left out here. Measured
with 20,000 entries: 300 ms when all are decoded, 72 ms when they are passed over, 24 ms when the kernel leaves them
out, which is its walk through the hash table; with a million, 7 s when they are passed over and 0.4 to 1 s when the
kernel leaves them out. What is left out takes no memory.

An entry is deleted by its original tuple, zone and id, so that one which came anew meanwhile stays.
Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from podwire.errors import KernelNotFound, Unsupported
from podwire.kernel.attributes import attribute, be16, nested, number, parse, u8, u32
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import inside
from podwire.kernel.uapi import (
    AF_INET,
    AF_INET6,
    AF_UNSPEC,
    CTA_FILTER,
    CTA_FILTER_F_CTA_IP_DST,
    CTA_FILTER_F_CTA_PROTO_DST_PORT,
    CTA_FILTER_F_CTA_PROTO_NUM,
    CTA_FILTER_ORIG_FLAGS,
    CTA_FILTER_REPLY_FLAGS,
    CTA_ID,
    CTA_IP_V4_DST,
    CTA_IP_V4_SRC,
    CTA_IP_V6_DST,
    CTA_IP_V6_SRC,
    CTA_MARK,
    CTA_PROTO_DST_PORT,
    CTA_PROTO_NUM,
    CTA_PROTO_SRC_PORT,
    CTA_STATUS,
    CTA_STATUS_MASK,
    CTA_TUPLE_IP,
    CTA_TUPLE_ORIG,
    CTA_TUPLE_PROTO,
    CTA_TUPLE_REPLY,
    CTA_ZONE,
    IPCTNL_MSG_CT_DELETE,
    IPCTNL_MSG_CT_GET,
    NETLINK_NETFILTER,
    NFNL_SUBSYS_CTNETLINK,
)
from podwire.state.address import ip_text, pack_ip, unpack_ip

_SYSCTL = "/proc/sys/net/netfilter/nf_conntrack"
_NFGENMSG = struct.Struct("!BBH")
_ATTRIBUTE = struct.Struct("=H")
_FEW = 5
"""Addresses from which on it is quicker to look up the ends of each flow."""
_IPS_ASSURED, _IPS_DST_NAT = 1 << 2, 1 << 5  # linux/netfilter/nf_conntrack_common.h
_PROTOCOLS = {1: "ICMP", 6: "TCP", 17: "UDP", 47: "GRE", 58: "ICMPv6", 132: "SCTP", 136: "UDPLITE"}


class Ends(NamedTuple):
    """One direction of a flow; ports are 0 for protocols without."""

    src: str
    dst: str
    sport: int
    dport: int


class Flow(NamedTuple):
    """One entry: protocol name (or number), what came first, and what answers to it look like.

    A translated flow has an answer that is not the mirror of the original. ``raw`` is what deletes it.
    """

    protocol: str
    original: Ends
    reply: Ends
    mark: int = 0
    zone: int = 0
    raw: bytes = b""
    family: int = AF_INET
    redirected: bool = False
    """Whether connection tracking itself translates the destination; IPVS changes only what answers look like."""
    assured: bool = False
    """Whether a handshake is complete; of UDP, UDPLITE and GRE whether there were answers; of others never."""

    def __str__(self) -> str:
        one, two = self.original, self.reply
        return (
            f"{self.protocol} {one.src} {one.sport} -> {one.dst} {one.dport}"
            f" reply {two.src} {two.sport} -> {two.dst} {two.dport}"
        )

    def concerns(self, ips: Iterable[str]) -> bool:
        """Whether any of the addresses is an end of it, in either direction."""
        return not {self.original.src, self.original.dst, self.reply.src, self.reply.dst}.isdisjoint(ips)

    @property
    def backend(self) -> tuple[str, int]:
        """The address that answers: behind a translated address, the real destination."""
        return (self.reply.src, self.reply.sport)


class Target(NamedTuple):
    """Where flows were sent by who began them; any address when it is empty."""

    address: str
    port: int


def decode(payload: bytes) -> Flow:
    """The flow in a conntrack message.

    Raises: ProtocolError, struct.error when the bytes are none.
    """
    family, _version, _zone = _NFGENMSG.unpack_from(payload)
    found = parse(payload, _NFGENMSG.size)
    kept = (CTA_TUPLE_ORIG, CTA_ZONE, CTA_ID)
    status = int.from_bytes(found.get(CTA_STATUS, b""), "big")
    protocol, original = _decode_tuple(found.get(CTA_TUPLE_ORIG, b""))
    return Flow(
        protocol=_PROTOCOLS.get(protocol, str(protocol)),
        original=original,
        reply=_decode_tuple(found.get(CTA_TUPLE_REPLY, b""))[1],
        mark=int.from_bytes(found.get(CTA_MARK, b""), "big"),
        zone=int.from_bytes(found.get(CTA_ZONE, b""), "big"),
        raw=b"".join(attribute(kind | _nested(kind), found[kind]) for kind in kept if kind in found),
        family=family,
        redirected=bool(status & _IPS_DST_NAT),
        assured=bool(status & _IPS_ASSURED),
    )


def _filter(protocol: str, target: Target | None) -> bytes:
    """Attributes that make the kernel list one protocol alone, or only what was sent to a target."""
    number_of = {name: number for number, name in _PROTOCOLS.items()}
    if not protocol:
        return b""
    flags = CTA_FILTER_F_CTA_PROTO_NUM
    ip, proto = b"", u8(CTA_PROTO_NUM, number_of[protocol])
    if target is not None:
        flags |= CTA_FILTER_F_CTA_PROTO_DST_PORT
        proto += be16(CTA_PROTO_DST_PORT, target.port)
        if target.address:
            flags |= CTA_FILTER_F_CTA_IP_DST
            kind = CTA_IP_V6_DST if ":" in target.address else CTA_IP_V4_DST
            ip = nested(CTA_TUPLE_IP, attribute(kind, pack_ip(target.address)))
    chosen = nested(CTA_FILTER, u32(CTA_FILTER_ORIG_FLAGS, flags) + u32(CTA_FILTER_REPLY_FLAGS, 0))
    return nested(CTA_TUPLE_ORIG, ip + nested(CTA_TUPLE_PROTO, proto)) + chosen


def _of_status(assured: bool | None) -> bytes:
    """Attributes that make the kernel list those alone that are assured, or are not."""
    if assured is None:
        return b""
    value, mask = (_IPS_ASSURED if assured else 0).to_bytes(4, "big"), _IPS_ASSURED.to_bytes(4, "big")
    return attribute(CTA_STATUS, value) + attribute(CTA_STATUS_MASK, mask)


def _families(protocol: str, target: Target | None, wanted: Iterable[bytes]) -> tuple[int, ...]:
    """One walk lists both families, but a filter is refused (EOPNOTSUPP) unless it names one."""
    if target is not None and target.address:
        return (AF_INET6 if ":" in target.address else AF_INET,)
    sizes = {len(address) for address in wanted}
    if len(sizes) == 1:
        return (AF_INET if sizes == {4} else AF_INET6,)
    return (AF_INET, AF_INET6) if protocol else (AF_UNSPEC,)


def _nested(kind: int) -> int:
    return 0x8000 if kind == CTA_TUPLE_ORIG else 0


def _decode_tuple(data: bytes) -> tuple[int, Ends]:
    found = parse(data)
    ip, transport = parse(found.get(CTA_TUPLE_IP, b"")), parse(found.get(CTA_TUPLE_PROTO, b""))
    src = ip.get(CTA_IP_V4_SRC) or ip.get(CTA_IP_V6_SRC) or b""
    dst = ip.get(CTA_IP_V4_DST) or ip.get(CTA_IP_V6_DST) or b""
    ends = Ends(
        unpack_ip(src) if src else "",
        unpack_ip(dst) if dst else "",
        int.from_bytes(transport.get(CTA_PROTO_SRC_PORT, b""), "big"),
        int.from_bytes(transport.get(CTA_PROTO_DST_PORT, b""), "big"),
    )
    return number(transport, CTA_PROTO_NUM), ends


class Occupancy(NamedTuple):
    """How full the table is: entries of the namespace, the machine's limit for each, packets dropped for want of room.

    Dropped are first packets of new connections since boot; those that are tracked already go on.
    """

    entries: int
    limit: int
    dropped: int


def occupancy(netns: Path | str | int | None = None) -> Occupancy | None:
    """How full the table of a namespace is; None where nothing is tracked."""
    with inside(netns):
        try:
            entries, limit = (int(Path(f"{_SYSCTL}_{name}").read_text()) for name in ("count", "max"))
        except OSError:
            return None
        try:
            head, *rows = Path("/proc/thread-self/net/stat/nf_conntrack").read_text().splitlines()
        except OSError:
            head, rows = "drop", []
        column = head.split().index("drop")
        return Occupancy(entries, limit, sum(int(row.split()[column], 16) for row in rows))


def _holds(payload: bytes, wanted: frozenset[bytes]) -> bool:
    """Whether one of some addresses is an end of a flow, before anything is decoded.

    Both tuples come first, with their addresses in front: so many are looked up at once. Few are looked for as bytes.
    """
    if len(wanted) < _FEW:
        return any(ip in payload for ip in wanted)
    size = 4 if payload[0] == AF_INET else 16
    at = _NFGENMSG.size
    for _ in range(2):
        first = at + 12  # behind the heads of the tuple, of its addresses and of the first of them
        second = first + size + 4
        if payload[first : first + size] in wanted or payload[second : second + size] in wanted:
            return True
        at += _ATTRIBUTE.unpack_from(payload, at)[0] + 3 & ~3
    return False


def _went(flow: Flow, target: Target) -> bool:
    return flow.original.dport == target.port and target.address in ("", flow.original.dst)


class Conntrack:
    """The connection tracking of one network namespace."""

    def __init__(self, netns: Path | str | int | None = None) -> None:
        self._netlink = Netlink(netns, NETLINK_NETFILTER)

    def __enter__(self) -> "Conntrack":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._netlink.close()

    def flows(
        self,
        holding: Iterable[str] = (),
        protocol: str = "",
        target: Target | None = None,
        matches: Callable[[Flow], bool] | None = None,
        *,
        assured: bool | None = None,
    ) -> list[Flow]:
        """All entries of both families, or those of one protocol, or in which one of the addresses occurs.

        With a protocol, ``target`` leaves those that were sent there; ``assured`` leaves those that are, or are not.
        ``matches`` is asked about each of them.

        Raises: Unsupported when the kernel has no conntrack netlink; KernelError.
        """
        wanted = frozenset(pack_ip(ip) for ip in holding)

        def keep(payload: bytes) -> bool:
            if wanted and not _holds(payload, wanted):
                return False
            flow = decode(payload)
            if protocol not in ("", flow.protocol) or not (target is None or _went(flow, target)):
                return False
            if assured not in (None, flow.assured):
                return False
            return matches is None or matches(flow)

        kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
        chosen = _filter(protocol, target) + _of_status(assured)
        bodies = [_NFGENMSG.pack(family, 0, 0) + chosen for family in _families(protocol, target, wanted)]
        try:
            return [
                decode(payload)
                for body in bodies
                for _, payload in self._netlink.dump(Message(kind, 0, body, "list", "tracked connections"), keep)
            ]
        except KernelNotFound as failure:
            raise Unsupported("conntrack", "2.6.18", str(failure)) from failure

    def forget(
        self,
        matches: Callable[[Flow], bool],
        holding: Iterable[str] = (),
        protocol: str = "",
        target: Target | None = None,
        *,
        assured: bool | None = None,
    ) -> list[Flow]:
        """Deletes the entries that ``matches`` accepts; those there were.

        The others choose as in :meth:`flows` what is looked at in the first place.

        Raises: Unsupported, KernelError.
        """
        chosen = self.flows(holding, protocol, target, matches, assured=assured)
        kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE
        failures = self._netlink.batch(
            [Message(kind, 0, _NFGENMSG.pack(flow.family, 0, 0) + flow.raw, "forget", flow) for flow in chosen]
        )
        for failure in failures.values():
            if not isinstance(failure, KernelNotFound):
                raise failure
        return [flow for at, flow in enumerate(chosen) if at not in failures]

    def forget_addresses(self, ips: Iterable[str], protocol: str = "") -> int:
        """Deletes all entries that an address takes part in, of one protocol or of all; how many there were.

        Raises: Unsupported, KernelError.
        """
        wanted = frozenset(ip_text(ip) for ip in ips)
        if not wanted:
            return 0
        return len(self.forget(lambda flow: flow.concerns(wanted), wanted, protocol))
