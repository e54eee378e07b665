"""The upstream servers of ``forward``, as a link of a chain. Pure: the caller that runs the chain asks them."""

from typing import Self

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps, UpstreamAsk, refusal


class UpstreamServers:
    """Asks upstream."""

    per_client = False

    @classmethod
    def read(cls, _directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The link; servers and their options are chosen by the name (:mod:`podwire.dns.routes`)."""
        return cls()

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply of an upstream server as it arrived; SERVFAIL without one."""
        query = request.query
        if query.qtype in (wire.AXFR, wire.IXFR):
            return refusal(query, wire.REFUSED, "forward")
        raw = yield UpstreamAsk(query, request.options)
        if raw is None:
            return PluginReply(query, ZoneAnswer(rcode=wire.SERVFAIL), upstream=True, plugin="forward")
        return PluginReply(query, ZoneAnswer(rcode=raw[3] & 0xF), raw, upstream=True, plugin="forward")
