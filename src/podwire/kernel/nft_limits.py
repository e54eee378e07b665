"""Kernel expressions of nftables that bound packets: rates, numbers of connections, cookies in place of connections.

Source: ``linux/netfilter/nf_tables.h`` (limit, connlimit, synproxy), ``linux/netfilter/nf_synproxy.h``.
"""

import struct
from collections.abc import Mapping

from podwire.kernel import uapi
from podwire.kernel.nft_codec import attribute, attributes, nested, number, string, text, u32, u64
from podwire.state.nft_rules import ConnectionCount, Limit, SynProxy

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_UNIT_NAMES = {seconds: name for name, seconds in _UNITS.items()}
_SYNPROXY_OPTIONS = 0x01 | 0x02 | 0x04 | 0x08
"""MSS, window scale, selective acknowledgements, timestamps."""


def limit_payload(statement: Limit) -> bytes:
    """A rate."""
    return (
        u64(uapi.NFTA_LIMIT_RATE, statement.rate)
        + u64(uapi.NFTA_LIMIT_UNIT, _UNITS[statement.unit])
        + u32(uapi.NFTA_LIMIT_BURST, statement.burst)
        + u32(uapi.NFTA_LIMIT_TYPE, uapi.NFT_LIMIT_PKTS)
        + u32(uapi.NFTA_LIMIT_FLAGS, uapi.NFT_LIMIT_F_INV if statement.over else 0)
    )


def bound_payload(statement: Limit | ConnectionCount) -> bytes:
    """The expression that each element of a dynamic set gets."""
    if isinstance(statement, Limit):
        name, payload = "limit", limit_payload(statement)
    else:
        name = "connlimit"
        payload = u32(uapi.NFTA_CONNLIMIT_COUNT, statement.count)
        payload += u32(uapi.NFTA_CONNLIMIT_FLAGS, uapi.NFT_CONNLIMIT_F_INV)
    return nested(uapi.NFTA_DYNSET_EXPR, text(uapi.NFTA_EXPR_NAME, name) + nested(uapi.NFTA_EXPR_DATA, payload))


def synproxy_payload(statement: SynProxy) -> bytes:
    """Cookies in place of connections."""
    return (
        attribute(uapi.NFTA_SYNPROXY_MSS, struct.pack("!H", statement.mss))
        + attribute(uapi.NFTA_SYNPROXY_WSCALE, bytes([statement.wscale]))
        + u32(uapi.NFTA_SYNPROXY_FLAGS, _SYNPROXY_OPTIONS)
    )


def read_limit(attrs: Mapping[int, bytes]) -> Limit | None:
    """The rate of an expression; None for one that counts bytes."""
    unit = _UNIT_NAMES.get(number(attrs.get(uapi.NFTA_LIMIT_UNIT)))
    if unit is None or number(attrs.get(uapi.NFTA_LIMIT_TYPE)) != uapi.NFT_LIMIT_PKTS:
        return None
    over = bool(number(attrs.get(uapi.NFTA_LIMIT_FLAGS)) & uapi.NFT_LIMIT_F_INV)
    return Limit(number(attrs.get(uapi.NFTA_LIMIT_RATE)), unit, number(attrs.get(uapi.NFTA_LIMIT_BURST)), over)


def read_bound(payload: bytes) -> Limit | ConnectionCount | None:
    """The expression that elements of a dynamic set get; None for another one."""
    outer = attributes(payload)
    name, inner = string(outer.get(uapi.NFTA_EXPR_NAME)), attributes(outer.get(uapi.NFTA_EXPR_DATA, b""))
    if name == "limit":
        return read_limit(inner)
    if name == "connlimit" and number(inner.get(uapi.NFTA_CONNLIMIT_FLAGS)) == uapi.NFT_CONNLIMIT_F_INV:
        return ConnectionCount(number(inner.get(uapi.NFTA_CONNLIMIT_COUNT)))
    return None


def read_synproxy(attrs: Mapping[int, bytes]) -> SynProxy | None:
    """The expression as a statement; None for one with other options."""
    if number(attrs.get(uapi.NFTA_SYNPROXY_FLAGS)) != _SYNPROXY_OPTIONS:
        return None
    return SynProxy(number(attrs.get(uapi.NFTA_SYNPROXY_MSS)), number(attrs.get(uapi.NFTA_SYNPROXY_WSCALE)))
