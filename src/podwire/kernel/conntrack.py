"""Connection tracking: lists and deletes flows of a namespace (ctnetlink).

Some tracked flows are out of date. A UDP flow that was translated to a removed endpoint continues to that endpoint
while packets arrive. An address that is assigned to a new pod would match flows of the old pod. Deleting an entry does
not break TCP: the kernel looks the next packet up again.

The kernel filters by protocol and by the original destination (CTA_FILTER, 5.8), the ``target``, and by whether a flow
is assured (CTA_STATUS, newer). It has no filter for an address in either direction, so addresses are searched in the
bytes before an entry is decoded. Older kernels list every entry, and the filter is applied here. Measured with 20,000
entries: 300 ms when all are decoded, 72 ms when they are skipped undecoded, 24 ms when the kernel filters (its walk
through the hash table). With a million entries: 7 s when they are skipped, 0.4 to 1 s when the kernel filters. Skipped
entries take no memory.

An entry is deleted by its original tuple, zone and id, so that a newer entry with the same tuple stays. Source:
include/uapi/linux/netfilter/nfnetlink_conntrack.h.
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
"""From this number of addresses on, looking up both ends of each flow is faster than searching its bytes."""
_IPS_ASSURED, _IPS_DST_NAT = 1 << 2, 1 << 5  # linux/netfilter/nf_conntrack_common.h
_PROTOCOLS = {1: "ICMP", 6: "TCP", 17: "UDP", 47: "GRE", 58: "ICMPv6", 132: "SCTP", 136: "UDPLITE"}


class Ends(NamedTuple):
    """One direction of a flow; ports are 0 for protocols without."""

    src: str
    dst: str
    sport: int
    dport: int


class Flow(NamedTuple):
    """One entry: protocol name (or number), the tuple of the first packet, and the tuple of replies.

    The reply tuple of a translated flow is not the mirror of the original one. ``raw`` identifies the entry in a
    deletion.
    """

    protocol: str
    original: Ends
    reply: Ends
    mark: int = 0
    zone: int = 0
    raw: bytes = b""
    family: int = AF_INET
    redirected: bool = False
    """Whether connection tracking itself translates the destination; IPVS changes only the reply tuple."""
    assured: bool = False
    """Whether the handshake is complete; for UDP, UDPLITE and GRE whether a reply was received; for others never."""

    def __str__(self) -> str:
        original, two = self.original, self.reply
        return (
            f"{self.protocol} {original.src} {original.sport} -> {original.dst} {original.dport}"
            f" reply {two.src} {two.sport} -> {two.dst} {two.dport}"
        )

    def concerns(self, ips: Iterable[str]) -> bool:
        """Whether one of the addresses is an end of the flow, in either direction."""
        return not {self.original.src, self.original.dst, self.reply.src, self.reply.dst}.isdisjoint(ips)

    @property
    def backend(self) -> tuple[str, int]:
        """The source of replies: for a translated destination, the real one."""
        return (self.reply.src, self.reply.sport)


class Target(NamedTuple):
    """The original destination of flows; an empty address means any."""

    address: str
    port: int


def decode(payload: bytes) -> Flow:
    """The flow in a conntrack message.

    Raises: ProtocolError, struct.error when the bytes are not a flow.
    """
    family, _version, _zone = _NFGENMSG.unpack_from(payload)
    attributes = parse(payload, _NFGENMSG.size)
    key_attributes = (CTA_TUPLE_ORIG, CTA_ZONE, CTA_ID)
    status = int.from_bytes(attributes.get(CTA_STATUS, b""), "big")
    protocol, original = _decode_tuple(attributes.get(CTA_TUPLE_ORIG, b""))
    return Flow(
        protocol=_PROTOCOLS.get(protocol, str(protocol)),
        original=original,
        reply=_decode_tuple(attributes.get(CTA_TUPLE_REPLY, b""))[1],
        mark=int.from_bytes(attributes.get(CTA_MARK, b""), "big"),
        zone=int.from_bytes(attributes.get(CTA_ZONE, b""), "big"),
        raw=b"".join(
            attribute(kind | _nested(kind), attributes[kind]) for kind in key_attributes if kind in attributes
        ),
        family=family,
        redirected=bool(status & _IPS_DST_NAT),
        assured=bool(status & _IPS_ASSURED),
    )


def _tuple_filter(protocol: str, target: Target | None) -> bytes:
    """Attributes by which the kernel lists only one protocol, or only flows to a target."""
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
    selected = nested(CTA_FILTER, u32(CTA_FILTER_ORIG_FLAGS, flags) + u32(CTA_FILTER_REPLY_FLAGS, 0))
    return nested(CTA_TUPLE_ORIG, ip + nested(CTA_TUPLE_PROTO, proto)) + selected


def _status_filter(assured: bool | None) -> bytes:
    """Attributes by which the kernel lists only assured flows, or only others; empty for None."""
    if assured is None:
        return b""
    value, mask = (_IPS_ASSURED if assured else 0).to_bytes(4, "big"), _IPS_ASSURED.to_bytes(4, "big")
    return attribute(CTA_STATUS, value) + attribute(CTA_STATUS_MASK, mask)


def _families(protocol: str, target: Target | None, packed: Iterable[bytes]) -> tuple[int, ...]:
    """The families to list: one walk lists both, but the kernel refuses a filter without a family (EOPNOTSUPP)."""
    if target is not None and target.address:
        return (AF_INET6 if ":" in target.address else AF_INET,)
    sizes = {len(address) for address in packed}
    if len(sizes) == 1:
        return (AF_INET if sizes == {4} else AF_INET6,)
    return (AF_INET, AF_INET6) if protocol else (AF_UNSPEC,)


def _nested(kind: int) -> int:
    return 0x8000 if kind == CTA_TUPLE_ORIG else 0


def _decode_tuple(data: bytes) -> tuple[int, Ends]:
    attributes = parse(data)
    ip, transport = parse(attributes.get(CTA_TUPLE_IP, b"")), parse(attributes.get(CTA_TUPLE_PROTO, b""))
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
    """Entries of the namespace, the limit per namespace, and packets that were dropped because the table was full.

    Only first packets of new connections are dropped, counted since boot; tracked connections continue.
    """

    entries: int
    limit: int
    dropped: int


def occupancy(netns: Path | str | int | None = None) -> Occupancy | None:
    """Entries, limit and drops of a namespace; None when nothing is tracked there."""
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


def _contains_address(payload: bytes, packed: frozenset[bytes]) -> bool:
    """Whether one of the addresses is an end of a flow, without decoding it.

    Both tuples come first, each begins with its addresses, so many addresses are compared at these offsets. Few
    addresses are searched in the bytes.
    """
    if len(packed) < _FEW:
        return any(ip in payload for ip in packed)
    size = 4 if payload[0] == AF_INET else 16
    at = _NFGENMSG.size
    for _ in range(2):
        first = at + 12  # Behind the headers of the tuple, of its addresses, and of the first address.
        second = first + size + 4
        if payload[first : first + size] in packed or payload[second : second + size] in packed:
            return True
        at += _ATTRIBUTE.unpack_from(payload, at)[0] + 3 & ~3
    return False


def _was_sent_to(flow: Flow, target: Target) -> bool:
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
        addresses: Iterable[str] = (),
        protocol: str = "",
        target: Target | None = None,
        matches: Callable[[Flow], bool] | None = None,
        *,
        assured: bool | None = None,
    ) -> list[Flow]:
        """The entries of both families that meet all conditions.

        ``addresses``: one of these addresses is an end of the flow. ``protocol``: only this one. With a protocol,
        ``target`` keeps flows with this original destination; ``assured`` keeps those that are assured, or are not.
        ``matches`` is called with each remaining flow.

        Raises: Unsupported when the kernel has no conntrack netlink; KernelError.
        """
        packed = frozenset(pack_ip(ip) for ip in addresses)

        def keep(payload: bytes) -> bool:
            if packed and not _contains_address(payload, packed):
                return False
            flow = decode(payload)
            if protocol not in ("", flow.protocol) or not (target is None or _was_sent_to(flow, target)):
                return False
            if assured not in (None, flow.assured):
                return False
            return matches is None or matches(flow)

        kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
        selected = _tuple_filter(protocol, target) + _status_filter(assured)
        bodies = [_NFGENMSG.pack(family, 0, 0) + selected for family in _families(protocol, target, packed)]
        try:
            return [
                decode(payload)
                for body in bodies
                for payload in self._netlink.dump(Message(kind, 0, body, "list", "tracked connections"), keep)
            ]
        except KernelNotFound as failure:
            raise Unsupported("conntrack", "2.6.18", str(failure)) from failure

    def forget(
        self,
        matches: Callable[[Flow], bool],
        addresses: Iterable[str] = (),
        protocol: str = "",
        target: Target | None = None,
        *,
        assured: bool | None = None,
    ) -> list[Flow]:
        """Deletes the entries that ``matches`` accepts; returns those that existed.

        The other arguments select as in :meth:`flows`.

        Raises: Unsupported, KernelError.
        """
        selected = self.flows(addresses, protocol, target, matches, assured=assured)
        kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE
        failures = self._netlink.batch(
            [Message(kind, 0, _NFGENMSG.pack(flow.family, 0, 0) + flow.raw, "forget", flow) for flow in selected]
        )
        for failure in failures.values():
            if not isinstance(failure, KernelNotFound):
                raise failure
        return [flow for at, flow in enumerate(selected) if at not in failures]

    def forget_addresses(self, ips: Iterable[str], protocol: str = "") -> int:
        """Deletes all entries with one of the addresses at an end, of one protocol or of all; returns their number.

        Raises: Unsupported, KernelError.
        """
        addresses = frozenset(ip_text(ip) for ip in ips)
        if not addresses:
            return 0
        return len(self.forget(lambda flow: flow.concerns(addresses), addresses, protocol))
