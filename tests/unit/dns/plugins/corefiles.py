"""Asks the plugins of a Corefile, with the objects of a small cluster and upstream servers that are a table."""

from collections.abc import Mapping

import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from tests.unit.dns.names_of_cluster import fill_cluster

from podwire.dns.config import DnsConfig
from podwire.dns.corefile.settings import read_settings
from podwire.dns.corefile.syntax import parse_corefile
from podwire.dns.plugins.chain import ChainOutcome, ChainQuery, DnsClient, PluginChain, ReplyStream, request_bytes
from podwire.dns.plugins.plugin import PluginScope, UpstreamAsk
from podwire.dns.respond import Reply
from podwire.dns.zone import Zone, zone_options

Upstream = Mapping[str, str]
"""Zone file lines by ``name type``; a line such as ``rcode NXDOMAIN`` is a response code."""

CLUSTER = (
    "kubernetes cluster.local in-addr.arpa {\n pods verified\n fallthrough in-addr.arpa\n }\n forward . 192.0.2.53\n"
)
"""Plugins of a server block: the cluster's zone and an upstream server."""


def settings(text: str, files: Mapping[str, str] | None = None) -> DnsConfig:
    """The settings of a Corefile."""

    def read_files(pattern: str) -> dict[str, str]:
        folder = pattern.removesuffix("*")
        return {path: body for path, body in (files or {}).items() if path == pattern or (
            folder != pattern and path.startswith(folder))}  # fmt: skip

    return read_settings(parse_corefile(text, "Corefile", {}, read_files), "Corefile", read_files)


class Plugins:
    """The chain of a Corefile; ``asked`` has the questions for upstream servers, ``requests`` their bytes."""

    def __init__(self, text: str, upstream: Upstream | None = None, files: Mapping[str, str] | None = None) -> None:
        config = settings(text, files)
        self.zone = Zone(zone_options(config, (bytes([10, 244, 0, 53]),)))
        fill_cluster(self.zone)
        self._upstream = upstream or {}
        self.asked: list[str] = []
        self.requests: list[bytes] = []
        self.views: list[str] = []
        self.kept = False
        scope = PluginScope(
            zones=(),
            cluster=self.zone,
            domain=config.domain,
            pods=config.pods,
            files=config.files,
            host_name="dns-1",
            version="1.2.3",
        )
        self.chain = PluginChain(config, scope, lambda _ask, _view, _tcp: None)

    def outcome(self, request: bytes, client: DnsClient) -> ChainOutcome:
        """What becomes of a request."""
        outcome, self.kept = self.chain.respond(request, client)
        while isinstance(outcome, ChainQuery):
            assert outcome.ask is not None
            self.views.append(outcome.view)
            outcome = self.chain.go_on(outcome, self._answer(outcome.ask))
        return outcome

    def ask(
        self, name: str, kind: str = "A", *, client: str = "10.244.1.7", tcp: bool = False, query: str = ""
    ) -> dns.message.Message:
        """The reply to a question; ``query`` is a class other than IN."""
        message = dns.message.make_query(name, kind, query or "IN", use_edns=0, payload=1232)
        return self.reply(message, client=client, tcp=tcp)

    def reply(
        self, message: dns.message.Message, *, client: str = "10.244.1.7", tcp: bool = False
    ) -> dns.message.Message:
        """The reply to a message."""
        outcome = self.outcome(message.to_wire(), DnsClient(client, 4711, tcp, "10.96.0.10", 53))
        assert isinstance(outcome, Reply)
        reply = dns.message.from_wire(outcome.data, one_rr_per_rrset=True)
        assert message.is_response(reply)
        return reply

    def transfer(self, zone: str, client: str = "10.244.1.7") -> list[str]:
        """The records of a zone transfer; empty when it is refused."""
        outcome = self.outcome(dns.message.make_query(zone, "AXFR").to_wire(), DnsClient(client, 4711, True))
        if not isinstance(outcome, ReplyStream):
            return []
        messages = [dns.message.from_wire(message, one_rr_per_rrset=True) for message in outcome.messages]
        return [line for message in messages for line in lines(message)]

    def _answer(self, ask: UpstreamAsk) -> bytes | None:
        request = request_bytes(ask)
        self.requests.append(request)
        query = dns.message.from_wire(request)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{question.name} {kind}")
        if (text := self._upstream.get(f"{str(question.name).lower()} {kind}")) is None:
            return None
        reply = dns.message.make_response(query, recursion_available=True)
        if text.startswith("rcode "):
            reply.set_rcode(dns.rcode.from_text(text.removeprefix("rcode ")))
        else:
            for line in filter(None, text.split("\n")):
                owner, ttl, rtype, value = line.split(maxsplit=3)
                reply.answer.append(dns.rrset.from_text(owner, int(ttl), "IN", rtype, value))
        return reply.to_wire()


def lines(message: dns.message.Message, section: str = "answer") -> list[str]:
    """The records of a section as ``name TTL type value``."""
    return [
        f"{rrset.name} {rrset.ttl} {dns.rdatatype.to_text(rrset.rdtype)} {rdata.to_text()}"
        for rrset in getattr(message, section)
        for rdata in rrset
    ]


def code(message: dns.message.Message) -> str:
    """The response code as text."""
    return dns.rcode.to_text(message.rcode())
