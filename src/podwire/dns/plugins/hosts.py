"""``hosts`` with zones, without ``fallthrough``, or in a view: fixed names of one server block. Pure.

The common form (all zones, with ``fallthrough``) is a setting of the zone itself, which costs nothing for other names.
"""

from typing import Self

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.hostlines import read_host_lines
from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import match_zone
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.zone import HostTable


class HostNames:
    """The names of a server block."""

    per_client = False

    def __init__(self, table: HostTable, zones: tuple[bytes, ...], passes_on: tuple[bytes, ...]) -> None:
        self._table = table
        self._zones = zones
        self._passes_on = passes_on

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin.

        Raises: ConfigError with the line of what is wrong.
        """
        lines = read_host_lines(directives[-1], scope.files)
        table = HostTable(lines.hosts, lines.ttl_s)
        return cls(table, lines.zones or scope.zones, lines.passes_on)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The addresses; a missing name of the zones does not exist, unless it is passed on."""
        query = request.query
        if query.qclass not in (wire.IN, wire.CLASS_ANY) or match_zone(query.name, self._zones) is None:
            return (yield from following(request))
        answer = self._table.look_up(query.name, query.qtype)
        if answer is None and match_zone(query.name, self._passes_on) is not None:
            return (yield from following(request))
        return PluginReply(query, answer or ZoneAnswer(rcode=wire.NXDOMAIN, zone="hosts"), plugin="hosts")
