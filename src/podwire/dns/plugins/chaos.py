"""``chaos [VERSION] [AUTHOR...]``: version and name of the server in class CH (``version.bind``). Pure."""

from typing import Self

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect
from podwire.dns.names import encode_name
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.wire import ResourceRecord

_CHAOS = 3
_MOST = 255
_VERSION_NAMES = (encode_name("version.bind"), encode_name("version.server"))
_HOST_NAMES = (encode_name("hostname.bind"), encode_name("id.server"))
_AUTHOR_NAMES = (encode_name("authors.bind"),)


class Chaos:
    """Answers TXT questions of class CH."""

    per_client = False

    def __init__(self, version: str, authors: tuple[str, ...], host_name: str) -> None:
        self._texts: dict[bytes, tuple[str, ...]] = dict.fromkeys(_VERSION_NAMES, (version,))
        self._texts |= dict.fromkeys(_HOST_NAMES, (host_name,))
        self._texts |= dict.fromkeys(_AUTHOR_NAMES, authors)

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin; without a version it is podwire's own."""
        directive = directives[-1]
        expect(not directive.block, directive, "podwire does not have options of chaos")
        version, *authors = directive.arguments or (f"podwire {scope.version}".strip(),)
        for text in (version, *authors):
            expect(len(text.encode()) <= _MOST, directive, f"expected at most {_MOST} bytes in {text[:20]!r}...")
        return cls(version, tuple(authors), scope.host_name)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The texts, or the reply of the following plugins."""
        query = request.query
        texts = self._texts.get(query.name.lower())
        if query.qclass != _CHAOS or query.qtype != wire.TXT or texts is None:
            return (yield from following(request))
        records = tuple(
            ResourceRecord(query.name, wire.TXT, 0, tail=bytes([len(text.encode())]) + text.encode(), rclass=_CHAOS)
            for text in texts
        )
        return PluginReply(query, ZoneAnswer(records=records), plugin="chaos")
