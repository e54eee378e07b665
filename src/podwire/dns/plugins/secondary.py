"""``secondary ZONE... { transfer from ADDRESS... }``: zones that are copied from other name servers. Pure.

The copies are kept current by :mod:`podwire.dns.secondaries`; this module answers from them. Before the first copy is
whole, and after it has expired, the answer is SERVFAIL. A notice of one of the servers (NOTIFY, RFC 1996) is confirmed
and starts a comparison; those of other clients are refused.
"""

from collections.abc import Callable
from typing import Self

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, server_address, zone_names
from podwire.dns.names import match_zone
from podwire.dns.plugins.file import answer_from
from podwire.dns.plugins.plugin import Handler, PluginRequest, PluginScope, Steps, refusal
from podwire.dns.plugins.staticzone import StaticZone


class Secondary:
    """The copied zones of a server block; ``sources`` are their servers by zone."""

    per_client = False

    def __init__(self, sources: dict[bytes, tuple[tuple[str, int], ...]], copies: dict[bytes, StaticZone]) -> None:
        self.sources = sources
        self._copies = copies
        self.on_notice: Callable[[bytes], None] = lambda _origin: None
        """Called in any thread with a zone when one of its servers reports a change."""

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin of all ``secondary`` directives."""
        sources: dict[bytes, tuple[tuple[str, int], ...]] = {}
        for directive in directives:
            servers: tuple[tuple[str, int], ...] = ()
            for option in directive.block:
                match option.name, option.arguments:
                    case "transfer", ("from", _, *_):
                        servers += tuple(server_address(option, text) for text in option.arguments[1:])
                    case _:
                        raise option.wrong("expected transfer from and addresses")
            expect(bool(servers), directive, "expected transfer from and addresses")
            sources |= dict.fromkeys(zone_names(directive, directive.arguments, scope.zones), servers)
        return cls(sources, scope.transferred)

    def take_notice(self, query: wire.Query, client: str) -> bool:
        """Whether a notice names a copied zone and comes from one of its servers; it is passed on."""
        origin = query.name.lower()
        if client not in {host for host, _ in self.sources.get(origin, ())}:
            return False
        self.on_notice(origin)
        return True

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The answer of the copy, or that of the following plugins."""
        origin = match_zone(request.query.name, self.sources)
        if origin is None:
            return (yield from following(request))
        copy = self._copies.get(origin)
        if copy is None:
            return refusal(request.query, wire.SERVFAIL, "secondary")
        return (yield from answer_from({origin: copy}, (), request, following))
