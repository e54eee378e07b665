"""The cluster's zone, its reverse zones and the fixed names of ``hosts``, as a link of a chain. Pure."""

from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import match_zone
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps, UpstreamAsk, refusal
from podwire.dns.respond import UpstreamQuery, merged
from podwire.dns.zone import Zone
from podwire.dns.zonetransfer import transfer_records
from podwire.errors import ProtocolError


class ClusterZone:
    """Answers from the zone; a name outside of it is passed on."""

    per_client = False

    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    @classmethod
    def read(cls, _directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The link; its settings are those of the zone."""
        return cls(scope.cluster)

    def _zone_of(self, name: bytes) -> Zone:
        imported = self._zone.imported
        return imported if imported is not None and match_zone(name, imported.apex) is not None else self._zone

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The answer of the zone, with the foreign target of an alias behind it."""
        query = request.query
        if query.qclass not in (wire.IN, wire.CLASS_ANY):
            return (yield from following(request))
        if query.qtype in (wire.AXFR, wire.IXFR):
            return PluginReply(query, ZoneAnswer(), stream=transfer_records(self._zone_of(query.name), query.name))
        try:
            answer = self._zone.look_up(query.name, query.qtype)
        except ProtocolError:
            # A target would exceed 255 bytes.
            return PluginReply(query, ZoneAnswer(rcode=wire.SERVFAIL))
        if answer.foreign:
            return (yield from following(request))
        if answer.follow:
            return (yield from _chase(request, answer))
        return PluginReply(query, answer)


def _chase(request: PluginRequest, answer: ZoneAnswer) -> Steps:
    query = request.query
    raw = yield UpstreamAsk(
        msgspec.structs.replace(query, name=answer.follow, flags=wire.RD, edns=wire.Edns(size=1232))
    )
    if raw is None:
        return refusal(query, wire.SERVFAIL, "kubernetes")
    message = wire.parse_message(raw)
    whole = merged(UpstreamQuery(query, answer.follow, answer), message)
    return PluginReply(query, whole, truncated=bool(message.flags & wire.TC), set_flags=wire.RA)
