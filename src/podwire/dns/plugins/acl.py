"""``acl [ZONE...]``: which clients may ask for which types. Pure.

The rules are tried in order; the first one whose type and network match decides: ``allow`` passes the request on,
``block`` answers REFUSED, ``filter`` answers with no data, ``drop`` sends nothing. A request that no rule matches is
allowed. A refusal carries the extended error that RFC 8914 has for it (18 prohibited, 17 filtered).
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, network, record_type, zone_names
from podwire.dns.metrics import Series
from podwire.dns.names import decode_name, match_zone
from podwire.dns.plugins.ednsoptions import join_options
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps

_COUNTED = {"allow": "allowed", "block": "blocked", "filter": "filtered", "drop": "dropped"}
"""The words of the series by action."""
_ACTIONS = tuple(_COUNTED)
_EXTENDED_ERROR, _FILTERED, _PROHIBITED = 15, 17, 18
DROPPED = -1
"""The response code of a request that gets no reply."""


class AccessRule(msgspec.Struct, frozen=True):
    """One rule; no types or networks means all of them."""

    zones: tuple[bytes, ...]
    action: str
    types: frozenset[int] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def matches(self, query: wire.Query, client: str) -> bool:
        """Whether the rule is about a request."""
        if match_zone(query.name, self.zones) is None or (self.types and query.qtype not in self.types):
            return False
        if not self.networks:
            return True
        address = ip_address(client.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in allowed for allowed in self.networks)


class AccessList:
    """The rules of a server block."""

    per_client = True

    def __init__(self, rules: tuple[AccessRule, ...]) -> None:
        self.rules = rules
        self._counts: dict[tuple[str, str], int] = {}

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin of all ``acl`` directives, in order."""
        rules: list[AccessRule] = []
        for directive in directives:
            zones = zone_names(directive, directive.arguments, scope.zones)
            expect(bool(directive.block), directive, f"expected rules: {', '.join(_ACTIONS)}")
            rules += [_read_rule(option, zones) for option in directive.block]
        return cls(tuple(rules))

    def decide(self, query: wire.Query, client: str) -> str:
        """The action for a request."""
        rule = self._rule(query, client)
        return rule.action if rule is not None else "allow"

    def _rule(self, query: wire.Query, client: str) -> AccessRule | None:
        return next((rule for rule in self.rules if rule.matches(query, client)), None)

    def series(self) -> Iterator[Series]:
        """How many requests the rules decided, by action and zone."""
        for (action, zone), count in tuple(self._counts.items()):
            labels = (("zone", zone),) if action != "allow" else ()
            yield f"coredns_acl_{_COUNTED[action]}_requests_total", labels, count

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply of the following plugins, or the refusal."""
        rule = self._rule(request.query, request.client)
        action = rule.action if rule is not None else "allow"
        zone = match_zone(request.query.name, rule.zones) if rule is not None and action != "allow" else None
        key = (action, decode_name(zone) if zone is not None else "")
        self._counts[key] = self._counts.get(key, 0) + 1
        if action == "allow":
            return (yield from following(request))
        rcode = {"block": wire.REFUSED, "filter": wire.NOERROR, "drop": DROPPED}[action]
        reason = _FILTERED if action == "filter" else _PROHIBITED
        options = join_options(((_EXTENDED_ERROR, reason.to_bytes(2, "big")),))
        return PluginReply(request.query, ZoneAnswer(rcode=rcode), upstream=True, options=options, plugin="acl")


def _read_rule(option: Directive, zones: tuple[bytes, ...]) -> AccessRule:
    expect(option.name in _ACTIONS and not option.block, option, f"expected one of {', '.join(_ACTIONS)}")
    types: set[int] = set()
    networks: list[IPv4Network | IPv6Network] = []
    section = ""
    every: set[str] = set()
    for text in option.arguments:
        if text in ("type", "net"):
            section = text
        elif not section:
            raise option.wrong(f"expected type or net before {text!r}")
        elif text == "*":
            every.add(section)
        elif section == "type":
            types.add(record_type(option, text))
        else:
            networks.append(network(option, text))
    return AccessRule(
        zones,
        option.name,
        frozenset() if "type" in every else frozenset(types),
        () if "net" in every else tuple(networks),
    )
