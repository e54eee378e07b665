"""``file FILE [ZONE...]``: zones whose records are in a zone file. Pure: the text is read with the Corefile.

A changed file is read again with the Corefile (plugin ``reload``); a wrong one is an error with its line, and the
present configuration stays in force.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, zone_names
from podwire.dns.names import decode_name, match_zone
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.plugins.staticzone import StaticZone
from podwire.dns.plugins.zonetext import read_zone
from podwire.dns.respond import split_addresses
from podwire.errors import ProtocolError

_TRANSFERS = (wire.AXFR, wire.IXFR)


class ZoneFiles:
    """The zones of a server block; ``passes_on`` are zones whose missing names go on to the next plugin."""

    per_client = False

    def __init__(self, zones: Mapping[bytes, StaticZone], passes_on: tuple[bytes, ...] = ()) -> None:
        self._zones = zones
        self._passes_on = passes_on

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin of all ``file`` directives."""
        zones: dict[bytes, StaticZone] = {}
        passes_on: tuple[bytes, ...] = ()
        for directive in directives:
            expect(bool(directive.arguments), directive, "expected a file, and zones")
            path, *texts = directive.arguments
            expect(path in scope.files, directive, f"cannot read {path}")
            for origin in zone_names(directive, tuple(texts), scope.zones):
                zones[origin] = load_zone(directive, scope.files[path], origin)
            for option in directive.block:
                match option.name, option.arguments:
                    case "fallthrough", names:
                        passes_on += zone_names(option, names, tuple(zones))
                    case "reload", (_,):
                        # The file is read with the Corefile; an interval of its own would change nothing.
                        raise option.wrong("podwire reads the file with the Corefile: use the plugin reload")
                    case _:
                        raise option.wrong("podwire does not have this option of file; it has fallthrough")
        return cls(zones, passes_on)

    @property
    def origins(self) -> tuple[bytes, ...]:
        """The names of the zones."""
        return tuple(self._zones)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The answer of the zone with the longest name, or that of the following plugins."""
        return (yield from answer_from(self._zones, self._passes_on, request, following))


def load_zone(directive: Directive, text: str, origin: bytes) -> StaticZone:
    """The zone in a text.

    Raises: ConfigError with the line of the directive, and that of the text.
    """
    try:
        return StaticZone(origin, read_zone(text, decode_name(origin)))
    except ProtocolError as failure:
        raise directive.wrong(failure.problem) from failure


def answer_from(
    zones: Mapping[bytes, StaticZone], passes_on: tuple[bytes, ...], request: PluginRequest, following: Handler
) -> Steps:
    """The answer of one of ``zones``; names of no zone, and missing ones of ``passes_on``, go on."""
    query = request.query
    origin = match_zone(query.name, zones)
    if origin is None or query.qclass not in (wire.IN, wire.CLASS_ANY):
        return (yield from following(request))
    zone = zones[origin]
    if query.qtype in _TRANSFERS:
        whole = (*zone.records, zone.soa) if query.name.lower() == origin else ()
        return PluginReply(query, ZoneAnswer(zone=decode_name(origin).removesuffix(".")), stream=whole, plugin="file")
    answer = zone.look_up(query.name, query.qtype)
    if answer.rcode == wire.NXDOMAIN and match_zone(query.name, passes_on) is not None:
        return (yield from following(request))
    if answer.follow and query.qtype in (wire.A, wire.AAAA):
        target = (yield from following(request.renamed(answer.follow))).expanded()
        answer = msgspec.structs.replace(answer, records=answer.records + target.answer.records)
    records, ring = split_addresses(answer.records, query.qtype)
    return PluginReply(query, msgspec.structs.replace(answer, records=records, ring=ring, follow=b""), plugin="file")
