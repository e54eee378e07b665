"""Replies for names that do not exist in the cluster's zone, made from the bytes of the request. Pure.

Why: a resolver with a search path asks for three or more missing names before the right one. Most of such requests have
the plainest form, and their reply is the question with a header and the SOA record. This module makes these replies,
byte for byte those of :mod:`podwire.dns.respond`, and leaves every other request to it: other opcodes and classes,
unusual EDNS, a zone in capital letters, names that exist, names of pods, and zones with fixed names, with fallthrough
or with hidden namespaces.

Cost: 5 us instead of 9 us, measured without sockets.
"""

from podwire.dns import wire
from podwire.dns.names import MAX_LABEL, MAX_NAME, encode_name, split_labels
from podwire.dns.zone import Zone

_NO_EDNS, _EDNS = b"\x00\x01\x00\x00\x00\x00\x00\x00", b"\x00\x01\x00\x00\x00\x00\x00\x01"
_COUNTS, _OPT_COUNTS = b"\x00\x01\x00\x00\x00\x01\x00\x00", b"\x00\x01\x00\x00\x00\x01\x00\x01"
_OPT_BYTES = 11
_TCP_BYTES = 65535
_LAST = 12 + MAX_NAME - 1
"""The highest offset of the end of a name in a request."""
_OWN_KINDS = (b"\x03pod", b"\x03dns", b"\x0bdns-version")
_TRANSFERS = (wire.AXFR, wire.IXFR)


class AbsentNames:
    """The missing names of a zone; ``udp_size`` 0 means TCP."""

    def __init__(self, zone: Zone, udp_size: int) -> None:
        self._index = zone.index
        self._soa = zone.forms.absent_soa
        self._domain = encode_name(zone.domain)
        self._depth = len(split_labels(self._domain))
        self._size = udp_size or _TCP_BYTES
        self._usable = zone.plain

    def reply(self, data: bytes) -> tuple[bytes, int, bool] | None:
        """The reply without its ID, the type of the question, and its flag DO; None: ask the zone itself."""
        if self._domain not in data:
            # A name of another zone, or the zone in another case.
            return None
        counts = data[4:12]
        if (counts != _NO_EDNS and counts != _EDNS) or data[2] & 0xF8 or not (self._usable and self._index.synced):
            return None
        offset, starts = 12, []
        try:
            while length := data[offset]:
                if length > MAX_LABEL:
                    return None
                starts.append(offset - 12)
                offset += length + 1
            qtype, rclass = data[offset + 1] << 8 | data[offset + 2], data[offset + 3] << 8 | data[offset + 4]
        except IndexError:
            return None
        name = data[12 : offset + 1].lower()
        if rclass != wire.IN or qtype in _TRANSFERS or offset > _LAST or not name.endswith(self._domain):
            return None
        if not self._absent(name, starts):
            return None
        opt = b""
        if counts == _EDNS:
            opt = self._opt(data, offset + 5)
            if not opt:
                return None
        head = bytes((0x84 | (data[2] & 1), (data[3] & 0x10) | wire.NXDOMAIN))
        soa = self._soa(name, starts[-self._depth])
        return (
            b"".join((head, _OPT_COUNTS if opt else _COUNTS, data[12 : offset + 5], soa, opt)),
            qtype,
            bool(opt and opt[7]),
        )

    def _absent(self, name: bytes, starts: list[int]) -> bool:
        """Whether a name below the zone does not exist; False when that is not clear at once."""
        depth = self._depth
        own = len(starts) - depth
        if own < 1:
            return False
        zone_at = starts[own]
        kind = name[starts[own - 1] : zone_at]
        if kind != b"\x03svc":
            return kind not in _OWN_KINDS
        if own < 3:
            return False
        # Labels with bytes that are no ASCII stay different from all names of the cluster.
        namespace = name[starts[own - 2] + 1 : starts[own - 1]].decode("latin-1")
        service = name[starts[own - 3] + 1 : starts[own - 2]].decode("latin-1")
        return (namespace, service) not in self._index.records

    def _opt(self, data: bytes, start: int) -> bytes:
        """The OPT record of the reply; empty when that of the request is unusual."""
        opt = data[start : start + _OPT_BYTES]
        if len(opt) != _OPT_BYTES or opt[:3] != b"\x00\x00\x29" or opt[6]:
            return b""
        if len(data) < start + _OPT_BYTES + (opt[9] << 8 | opt[10]):
            return b""
        size = (
            min(max(opt[3] << 8 | opt[4], wire.MIN_UDP_BYTES), self._size) if self._size != _TCP_BYTES else _TCP_BYTES
        )
        return b"\x00\x00\x29" + size.to_bytes(2, "big") + b"\x00\x00" + bytes((opt[7] & 0x80, 0)) + b"\x00\x00"
