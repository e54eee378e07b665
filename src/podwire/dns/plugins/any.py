"""``any``: a minimal answer to requests of type ANY, which then cannot amplify traffic (RFC 8482). Pure."""

from typing import Self

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect_bare
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.wire import ResourceRecord

_TTL_S = 8482
_HINFO = b"\x0dANY obsoleted\x0cSee RFC 8482"


class MinimalAny:
    """Answers ANY with one HINFO record."""

    per_client = False

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin, which has no options."""
        for directive in directives:
            expect_bare(directive)
        return cls()

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The HINFO record, or the reply of the following plugins."""
        query = request.query
        if query.qtype != wire.ANY:
            return (yield from following(request))
        record = ResourceRecord(query.name, wire.HINFO, _TTL_S, tail=_HINFO)
        return PluginReply(query, ZoneAnswer(records=(record,)), plugin="any")
