"""``dns64 [PREFIX]``: AAAA records made from A records, for clients that have IPv6 only. Pure.

A question for AAAA whose answer has none is asked again for A, and each address is put into the prefix (RFC 6147;
layout of addresses: RFC 6052 section 2.2). An answer that does not exist, and (without ``translate_all``) one that has
an AAAA record, stays as it is. Without ``allow_ipv4`` only clients that ask over IPv6 get such records.
"""

from ipaddress import IPv6Network
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, network
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.wire import ResourceRecord

_WELL_KNOWN = "64:ff9b::/96"
_LENGTHS = (32, 40, 48, 56, 64, 96)
_DEFAULT_TTL_S = 600


class Dns64:
    """Translates answers."""

    def __init__(self, prefix: IPv6Network, *, translate_all: bool, allow_ipv4: bool) -> None:
        self._prefix = prefix
        self._translate_all = translate_all
        self._allow_ipv4 = allow_ipv4
        self.per_client = not allow_ipv4

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin.

        Raises: ConfigError for a prefix whose length RFC 6052 does not have.
        """
        directive = directives[-1]
        expect(len(directive.arguments) < 2, directive, "expected at most a prefix")
        prefix, translate_all, allow_ipv4 = (*directive.arguments, _WELL_KNOWN)[0], False, False
        for option in directive.block:
            match option.name:
                case "prefix":
                    expect(len(option.arguments) == 1, option, "expected a prefix")
                    prefix = option.arguments[0]
                case "translate_all":
                    translate_all = True
                case "allow_ipv4":
                    allow_ipv4 = True
                case _:
                    raise option.wrong("podwire does not have this option of dns64")
            if option.name != "prefix":
                expect(not option.arguments, option, "expected no arguments")
        parsed = network(directive, prefix)
        if not isinstance(parsed, IPv6Network) or parsed.prefixlen not in _LENGTHS:
            raise directive.wrong(f"expected an IPv6 prefix of length {', '.join(map(str, _LENGTHS))}, got {prefix!r}")
        return cls(parsed, translate_all=translate_all, allow_ipv4=allow_ipv4)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply, translated if it has no AAAA record."""
        query = request.query
        reply = yield from following(request)
        eligible = query.qtype == wire.AAAA and query.qclass == wire.IN and (request.ipv6 or self._allow_ipv4)
        if not eligible or reply.rcode == wire.NXDOMAIN:
            return reply
        reply = reply.expanded()
        if not self._translate_all and any(record.type == wire.AAAA for record in reply.answer.records):
            return reply
        other = (yield from following(request.retyped(wire.A))).expanded()
        if not any(record.type == wire.A for record in other.answer.records):
            return reply
        return self._translated(query, reply, other)

    def _translated(self, query: wire.Query, reply: PluginReply, other: PluginReply) -> PluginReply:
        soas = [record.ttl for record in reply.answer.authority if record.type == wire.SOA]
        ceiling_s = soas[0] if soas else _DEFAULT_TTL_S
        records = tuple(
            record if record.type != wire.A else self._translate(record, ceiling_s) for record in other.answer.records
        )
        return msgspec.structs.replace(other.with_records(records), query=query)

    def _translate(self, record: ResourceRecord, ceiling_s: int) -> ResourceRecord:
        address = embed(self._prefix, record.tail)
        return msgspec.structs.replace(record, type=wire.AAAA, ttl=min(record.ttl, ceiling_s), tail=address)


def embed(prefix: IPv6Network, ipv4: bytes) -> bytes:
    """The IPv6 address that has an IPv4 address behind a prefix; byte 8 stays zero."""
    size = prefix.prefixlen // 8
    head = prefix.network_address.packed[:size]
    if size == 12:
        return head + ipv4
    before = ipv4[: 8 - size]
    return (head + before + b"\x00" + ipv4[8 - size :]).ljust(16, b"\x00")
