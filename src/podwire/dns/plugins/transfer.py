"""``transfer [ZONE...] { to ADDRESS... }``: whole zones for other name servers (AXFR, RFC 5936). Pure.

A transfer goes over TCP, to the networks and addresses of ``to``; ``*`` means everybody. A request for changes (IXFR,
RFC 1995) gets the SOA record alone when its serial is the present one, else the whole zone. The addresses of ``to`` are
told when a zone changes (:mod:`podwire.dns.notices`), at their port if there is one behind the address.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, network, server_address, zone_names
from podwire.dns.names import match_zone
from podwire.dns.plugins.plugin import Handler, PluginRequest, PluginScope, Steps, refusal
from podwire.dns.wire import DnsMessage, Query, ResourceRecord

Server = tuple[str, int]
"""Address and port."""

_TRANSFERS = (wire.AXFR, wire.IXFR)
_MESSAGE_BYTES = 16 << 10
_EVERYBODY = (ip_network("0.0.0.0/0"), ip_network("::/0"))


class Transfer:
    """Who may have which zones."""

    per_client = True

    def __init__(
        self, allowed: dict[bytes, tuple[IPv4Network | IPv6Network, ...]], recipients: dict[bytes, tuple[Server, ...]]
    ) -> None:
        self._allowed = allowed
        self._recipients = recipients

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin of all ``transfer`` directives."""
        allowed: dict[bytes, tuple[IPv4Network | IPv6Network, ...]] = {}
        recipients: dict[bytes, tuple[Server, ...]] = {}
        for directive in directives:
            networks: tuple[IPv4Network | IPv6Network, ...] = ()
            servers: tuple[Server, ...] = ()
            for option in directive.block:
                expect(option.name == "to" and bool(option.arguments), option, "expected to and addresses, or *")
                for text in option.arguments:
                    if text == "*" or "/" in text:
                        networks += _EVERYBODY if text == "*" else (network(option, text),)
                    else:
                        host, port = server_address(option, text)
                        networks += (network(option, host.partition("%")[0]),)
                        servers += ((host, port),)
            expect(bool(networks), directive, "expected to and addresses, or *")
            for zone in zone_names(directive, directive.arguments, scope.zones):
                allowed[zone] = allowed.get(zone, ()) + networks
                recipients[zone] = recipients.get(zone, ()) + servers
        return cls(allowed, recipients)

    def servers(self, zone: bytes) -> tuple[Server, ...]:
        """The name servers that are told when a zone changes."""
        known = match_zone(zone, self._recipients)
        return self._recipients[known] if known is not None else ()

    def permits(self, request: PluginRequest) -> bool:
        """Whether the client may have the zone."""
        zone = match_zone(request.query.name, self._allowed)
        if zone is None:
            return False
        address = ip_address(request.client.partition("%")[0])
        return any(address in networks for networks in self._allowed[zone])

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The records of the zone; other requests are passed on."""
        query = request.query
        if query.qtype not in _TRANSFERS:
            return (yield from following(request))
        if not self.permits(request):
            return refusal(query, wire.REFUSED, "transfer")
        reply = yield from following(request)
        records = reply.stream
        if not records:
            return refusal(query, wire.REFUSED, "transfer")
        if not request.tcp or (query.qtype == wire.IXFR and query.serial == _serial(records[0])):
            # Over UDP too, the SOA record alone tells the client to come again over TCP.
            return msgspec.structs.replace(reply.with_records(records[:1]), stream=(), plugin="transfer")
        return msgspec.structs.replace(reply, plugin="transfer")


def _serial(soa: ResourceRecord) -> int:
    return int.from_bytes(soa.tail[:4], "big")


def encode_stream(query: Query, records: tuple[ResourceRecord, ...]) -> Iterator[bytes]:
    """The messages of a transfer, each of at most about 16 KiB before compression."""
    flags = wire.QR | wire.AA | (query.flags & wire.RD)
    batch: list[ResourceRecord] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.name) + 10 + len(record.head) + sum(map(len, record.names)) + len(record.tail)
        if size > _MESSAGE_BYTES:
            yield wire.encode(DnsMessage(query.id, flags, query.name, query.qtype, query.qclass, tuple(batch)))
            batch, size = [], 0
    if batch:
        yield wire.encode(DnsMessage(query.id, flags, query.name, query.qtype, query.qclass, tuple(batch)))
