"""``whoami``: answers every name with the address and the port of the client. Pure."""

from typing import Self

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect_bare
from podwire.dns.names import ROOT, address_bytes, join_labels
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.wire import ResourceRecord
from podwire.errors import ProtocolError


class WhoAmI:
    """Answers with additional records: the address (A or AAAA), and the port (SRV of ``_udp`` or ``_tcp``)."""

    per_client = True

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin, which has no options."""
        for directive in directives:
            expect_bare(directive)
        return cls()

    def handle(self, request: PluginRequest, _following: Handler) -> Steps:
        """The reply; no plugin follows."""
        yield from ()
        query, records = request.query, []
        packed = address_bytes(request.client.partition("%")[0])
        if packed:
            qtype = wire.A if len(packed) == 4 else wire.AAAA
            records.append(ResourceRecord(query.name, qtype, 0, tail=packed))
        try:
            name = join_labels(("_tcp" if request.tcp else "_udp",), query.name)
        except ProtocolError:
            name = query.name
        head = b"\x00\x00\x00\x00" + request.port.to_bytes(2, "big")
        records.append(ResourceRecord(name, wire.SRV, 0, head, (ROOT,)))
        return PluginReply(query, ZoneAnswer(additional=tuple(records)), plugin="whoami")
