"""Packet and connection fields that rules read, as nft spells them, with the expression that loads each.

A field is loaded by one expression: ``payload`` (base header, offset), ``meta``, ``ct``, ``fib`` or ``socket``.
``protocol`` and ``family`` are matches that nft adds by itself and leaves out of its listing: ``tcp dport`` implies
``meta l4proto tcp``, and ``ip saddr`` in an ``inet`` table implies ``meta nfproto ipv4``, in a ``bridge`` table ``meta
protocol ip``.

Source: ``include/uapi/linux/netfilter/nf_tables.h``; names from nft(8).
"""

import msgspec

from podwire.errors import ConfigError
from podwire.state.nft_types import DataType, data_type

NETWORK_HEADER = 1
TRANSPORT_HEADER = 2


class FieldType(msgspec.Struct, frozen=True):
    """The expression that loads one field; the meaning of ``a`` and ``b`` depends on ``source``."""

    name: str
    source: str
    """payload (a: base, b: offset), meta and socket (a: key), ct (a: key, b: direction or -1), fib (a: result, b:
    flags)."""
    a: int
    b: int
    kind: str
    protocol: int = 0
    """Transport protocol that the field implies, 0 for none."""
    family: str = ""
    """``ip``, ``ip6`` or ``arp`` when the field exists only in this family."""

    @property
    def type(self) -> DataType:
        """The data type of the field."""
        return data_type(self.kind)


def _ports(name: str, protocol: int) -> tuple[FieldType, ...]:
    return (
        FieldType(f"{name} sport", "payload", TRANSPORT_HEADER, 0, "inet_service", protocol),
        FieldType(f"{name} dport", "payload", TRANSPORT_HEADER, 2, "inet_service", protocol),
    )


FIELDS: dict[str, FieldType] = {
    field.name: field
    for field in (
        FieldType("ip saddr", "payload", NETWORK_HEADER, 12, "ipv4_addr", family="ip"),
        FieldType("ip daddr", "payload", NETWORK_HEADER, 16, "ipv4_addr", family="ip"),
        FieldType("ip frag-off", "payload", NETWORK_HEADER, 6, "inet_service", family="ip"),
        FieldType("ip protocol", "payload", NETWORK_HEADER, 9, "inet_proto", family="ip"),
        FieldType("ip6 saddr", "payload", NETWORK_HEADER, 8, "ipv6_addr", family="ip6"),
        FieldType("ip6 daddr", "payload", NETWORK_HEADER, 24, "ipv6_addr", family="ip6"),
        FieldType("ip6 nexthdr", "payload", NETWORK_HEADER, 6, "inet_proto", family="ip6"),
        *_ports("th", 0),
        *_ports("tcp", 6),
        *_ports("udp", 17),
        *_ports("sctp", 132),
        FieldType("tcp flags", "payload", TRANSPORT_HEADER, 13, "tcp_flag", 6),
        FieldType("icmp type", "payload", TRANSPORT_HEADER, 0, "icmp_type", 1),
        FieldType("icmpv6 type", "payload", TRANSPORT_HEADER, 0, "icmpv6_type", 58),
        FieldType("icmpv6 taddr", "payload", TRANSPORT_HEADER, 8, "ipv6_addr", 58),
        FieldType("arp saddr ip", "payload", NETWORK_HEADER, 14, "ipv4_addr", family="arp"),
        FieldType("meta protocol", "meta", 1, 0, "ether_type"),
        FieldType("meta mark", "meta", 3, 0, "mark"),
        FieldType("iifname", "meta", 6, 0, "ifname"),
        FieldType("oifname", "meta", 7, 0, "ifname"),
        FieldType("meta skuid", "meta", 10, 0, "uid"),
        FieldType("meta nfproto", "meta", 15, 0, "nfproto"),
        FieldType("meta l4proto", "meta", 16, 0, "inet_proto"),
        FieldType("ct state", "ct", 0, -1, "ct_state"),
        FieldType("ct direction", "ct", 1, -1, "ct_dir"),
        FieldType("ct status", "ct", 2, -1, "ct_status"),
        FieldType("ct mark", "ct", 3, -1, "mark"),
        FieldType("ct original protocol", "ct", 10, 0, "inet_proto"),
        FieldType("ct original proto-src", "ct", 11, 0, "inet_service"),
        FieldType("ct original proto-dst", "ct", 12, 0, "inet_service"),
        FieldType("ct original ip saddr", "ct", 19, 0, "ipv4_addr", family="ip"),
        FieldType("ct original ip daddr", "ct", 20, 0, "ipv4_addr", family="ip"),
        FieldType("ct original ip6 saddr", "ct", 21, 0, "ipv6_addr", family="ip6"),
        FieldType("ct original ip6 daddr", "ct", 22, 0, "ipv6_addr", family="ip6"),
        FieldType("ct reply ip saddr", "ct", 19, 1, "ipv4_addr", family="ip"),
        FieldType("ct reply ip daddr", "ct", 20, 1, "ipv4_addr", family="ip"),
        FieldType("fib saddr type", "fib", 3, 1, "fib_addrtype"),
        FieldType("fib daddr type", "fib", 3, 2, "fib_addrtype"),
        FieldType("fib saddr . iif type", "fib", 3, 9, "fib_addrtype"),
        FieldType("fib daddr . iif type", "fib", 3, 10, "fib_addrtype"),
        FieldType("socket transparent", "socket", 0, 0, "boolean"),
    )
}
"""Every field by its name."""

_BY_LOAD = {(f.source, f.a, f.b, f.protocol, f.type.size): f for f in reversed(FIELDS.values())}


def field_type(name: str) -> FieldType:
    """The field of that name.

    Raises: ConfigError when there is none.
    """
    field = FIELDS.get(name)
    if field is None:
        raise ConfigError("nft", "", f"unknown field {name!r}")
    return field


def payload_field(base: int, offset: int, size: int, family: str, protocol: int) -> FieldType | None:
    """The payload field at this position of the packet, for the family and protocol of earlier matches."""
    if base == TRANSPORT_HEADER:
        return _BY_LOAD.get(("payload", base, offset, protocol, size)) or _BY_LOAD.get(
            ("payload", base, offset, 0, size)
        )
    field = _BY_LOAD.get(("payload", base, offset, 0, size))
    return field if field is not None and (not family or field.family == family) else None


def loaded_field(source: str, a: int, b: int) -> FieldType | None:
    """The ``meta``, ``ct``, ``fib`` or ``socket`` field with these numbers."""
    for field in FIELDS.values():
        if field.source == source and field.a == a and field.b == b:
            return field
    return None
