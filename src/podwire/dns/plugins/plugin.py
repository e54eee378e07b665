"""What a plugin is: a step that answers a request, or changes the request and the reply on their way. Pure.

How it works: ``handle`` is a generator. A plugin that answers itself returns a reply; another one delegates with
``yield from following(request)`` and may change the request before and the reply after. A plugin that needs an answer
of an upstream server yields :class:`UpstreamAsk` and gets the bytes of the reply, or None. So a plugin uses no socket
and no clock, and the same chain answers in the thread of a UDP socket and, when upstream is needed, on the event loop.

Cost: 1 to 2 us a plugin and request. Replies of plugins that do not look at the client are kept by request, like those
of the zone.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Protocol, Self, runtime_checkable

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.metrics import Series
from podwire.dns.plugins.staticzone import StaticZone
from podwire.dns.wire import DnsMessage, Query, ResourceRecord
from podwire.dns.zone import Zone
from podwire.errors import ProtocolError


class PluginRequest(msgspec.Struct, frozen=True, gc=False):
    """A request and where it comes from; ``size`` is its length in bytes, ``server`` the address that it was sent to.

    ``options`` are EDNS options that the request to an upstream server has instead of the client's.
    """

    query: Query
    client: str = ""
    port: int = 0
    tcp: bool = False
    size: int = 0
    server: str = ""
    server_port: int = 53
    options: bytes | None = None

    @property
    def ipv6(self) -> bool:
        """Whether the request came over IPv6."""
        return ":" in self.client

    def renamed(self, name: bytes) -> "PluginRequest":
        """The request for another name."""
        return msgspec.structs.replace(self, query=msgspec.structs.replace(self.query, name=name))

    def retyped(self, qtype: int) -> "PluginRequest":
        """The request for another record type."""
        return msgspec.structs.replace(self, query=msgspec.structs.replace(self.query, qtype=qtype))


class PluginReply(msgspec.Struct, frozen=True, gc=False):
    """A reply on its way back: the answer to ``query``.

    ``raw`` is the reply of an upstream server as it arrived, while no plugin has changed it. ``options`` are EDNS
    options. ``plugin`` is the plugin that answered, for metrics. ``stream`` has all records of a zone transfer.
    """

    query: Query
    answer: ZoneAnswer
    raw: bytes = b""
    upstream: bool = False
    truncated: bool = False
    set_flags: int = 0
    clear_flags: int = 0
    options: bytes = b""
    plugin: str = "kubernetes"
    stream: tuple[ResourceRecord, ...] = ()
    template: tuple[str, ...] = ()
    """Zone and class of the template that made the reply, for metrics."""

    @property
    def rcode(self) -> int:
        """The response code."""
        return self.raw[3] & 0xF if self.raw else self.answer.rcode

    def expanded(self) -> "PluginReply":
        """The same reply with all its records in ``answer``: nothing raw, no ring, no encoded SOA.

        Raises: ProtocolError when an upstream server sent what is no message.
        """
        if self.raw:
            parsed = reply_of_message(self.query, wire.parse_message(self.raw))
            return msgspec.structs.replace(
                parsed, set_flags=self.set_flags, clear_flags=self.clear_flags, options=self.options
            )
        answer = self.answer
        if answer.ring is None and not answer.soa:
            return self
        records = answer.records
        if answer.ring is not None:
            records += _ring_records(self.query, answer.ring)
        authority = answer.authority
        if answer.soa:
            authority += _soa_records(self.query, answer.soa)
        answer = msgspec.structs.replace(answer, records=records, authority=authority, ring=None, soa=b"")
        return msgspec.structs.replace(self, answer=answer)

    def with_records(self, records: tuple[ResourceRecord, ...]) -> "PluginReply":
        """The expanded reply with other answers."""
        return msgspec.structs.replace(self, answer=msgspec.structs.replace(self.answer, records=records))


class UpstreamAsk(msgspec.Struct, frozen=True, gc=False):
    """A question for upstream servers; the reply must fit into ``limit`` bytes of the client over UDP."""

    query: Query
    options: bytes | None = None


Steps = Generator[UpstreamAsk, bytes | None, PluginReply]
"""The handling of one request."""

Handler = Callable[[PluginRequest], Steps]
"""The following plugins."""


class PluginScope(msgspec.Struct, frozen=True):
    """What plugins are made from: the zones of their server block, the cluster's zone, and files by path.

    ``transferred`` has zones that are copied from other servers, by name; it changes while the server runs.
    """

    zones: tuple[bytes, ...]
    cluster: Zone
    domain: str
    pods: str = "disabled"
    files: Mapping[str, str] = {}
    transferred: dict[bytes, StaticZone] = {}
    host_name: str = "localhost"
    version: str = ""


class Plugin(Protocol):
    """One plugin of a server block."""

    per_client: bool
    """Whether replies depend on more than the bytes of the request, and so are not kept."""

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin of all its directives in a server block.

        Raises: ConfigError with the line of what is wrong.
        """

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply to a request; ``following`` are the plugins behind this one."""


@runtime_checkable
class CountingPlugin(Protocol):
    """A plugin with counters."""

    def series(self) -> Iterable[Series]:
        """Name, labels (but server and view) and value of its series; two threads that count at once may count once."""


def refusal(query: Query, rcode: int, plugin: str) -> PluginReply:
    """A reply without records; it has RA and not AA."""
    return PluginReply(query, ZoneAnswer(rcode=rcode), upstream=True, plugin=plugin)


def reply_of_message(query: Query, message: DnsMessage) -> PluginReply:
    """The reply of an upstream server as records."""
    answer = ZoneAnswer(
        rcode=message.rcode, records=message.answer, authority=message.authority, additional=message.additional
    )
    return PluginReply(query, answer, upstream=True, truncated=bool(message.flags & wire.TC), plugin="forward")


def _ring_records(query: Query, ring: wire.AddressRing) -> tuple[ResourceRecord, ...]:
    owner = ring.owner or query.name
    starts = range(0, len(ring.data), ring.step)
    return tuple([wire.parse_record(owner + ring.data[start + 2 : start + ring.step]) for start in starts])


def _soa_records(query: Query, soa: bytes) -> tuple[ResourceRecord, ...]:
    """The SOA record of a negative answer, whose names are pointers into the question."""
    question = query.name + query.qtype.to_bytes(2, "big") + query.qclass.to_bytes(2, "big")
    header = b"\x00\x00\x84\x00\x00\x01\x00\x00\x00\x01\x00\x00"
    try:
        return wire.parse_message(header + question + soa).authority
    except ProtocolError:
        return ()
