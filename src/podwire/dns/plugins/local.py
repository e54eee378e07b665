"""``local``: answers for ``localhost`` and the reverse zones of local addresses, which no other server has. Pure.

Also ``localhost`` with any domain behind it, which resolvers ask for along a search path, has the loopback addresses.
A name that does not exist in these zones is NXDOMAIN, where CoreDNS has no data. Sources: RFC 6303, RFC 6761 section
6.3, CoreDNS' documentation of the plugin.
"""

from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect_bare
from podwire.dns.names import encode_name, match_zone
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.plugins.staticzone import StaticZone
from podwire.dns.wire import ResourceRecord

_TTL_S = 86400
_LOCALHOST = encode_name("localhost")
_LABEL = _LOCALHOST[:-1]
_SOA_NUMBERS = b"".join(number.to_bytes(4, "big") for number in (1, 604800, 86400, 2419200, _TTL_S))
_LOOPBACK = (
    ResourceRecord(_LOCALHOST, wire.A, _TTL_S, tail=bytes((127, 0, 0, 1))),
    ResourceRecord(_LOCALHOST, wire.AAAA, _TTL_S, tail=bytes(15) + b"\x01"),
)
_POINTER = ResourceRecord(encode_name("1.0.0.127.in-addr.arpa"), wire.PTR, _TTL_S, names=(_LOCALHOST,))


def _zone(name: str, *records: ResourceRecord) -> StaticZone:
    origin = encode_name(name)
    soa = ResourceRecord(origin, wire.SOA, _TTL_S, names=(_LOCALHOST, encode_name("root.localhost")), tail=_SOA_NUMBERS)
    return StaticZone(origin, (soa, ResourceRecord(origin, wire.NS, _TTL_S, names=(_LOCALHOST,)), *records))


class LocalNames:
    """Answers local names, and passes all others on."""

    per_client = False

    def __init__(self) -> None:
        zones = (
            _zone("localhost", *_LOOPBACK),
            _zone("0.in-addr.arpa"),
            _zone("127.in-addr.arpa", _POINTER),
            _zone("255.in-addr.arpa"),
        )
        self._zones = {zone.origin: zone for zone in zones}

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin, which has no options."""
        for directive in directives:
            expect_bare(directive)
        return cls()

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The answer to a local name, or the reply of the following plugins."""
        query = request.query
        name = query.name.lower()
        origin = match_zone(name, self._zones)
        if origin is not None:
            return PluginReply(query, self._zones[origin].look_up(query.name, query.qtype), plugin="local")
        if not name.startswith(_LABEL) or query.qtype not in (wire.A, wire.AAAA):
            return (yield from following(request))
        answer = self._zones[_LOCALHOST].look_up(_LOCALHOST, query.qtype)
        owned = tuple(msgspec.structs.replace(record, name=query.name) for record in answer.records)
        return PluginReply(query, msgspec.structs.replace(answer, records=owned), plugin="local")
