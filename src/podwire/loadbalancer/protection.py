"""Limits for clients of a Service, from annotations of the Service (pure).

``podwire.io/max-connections-per-source``: how many connections one address may have at a time.
``podwire.io/new-connections-per-source``: how many one address may begin, ``20/second`` or ``100/minute``;
``podwire.io/new-connections-burst``: how many at once, by default as many as in one unit of time.
``podwire.io/syn-proxy``: ``true`` answers SYN packets with cookies, so that a flood of them reaches neither an endpoint
nor the connection table.

What exceeds a limit is dropped and counted, in a chain of its own for each Service and kind of limit. The limits are
before the translation to endpoints. A connection through the SYN proxy begins on the node itself, in the hook
``output``, so the limits are there as well.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from podwire.cluster.names import NEW_CONNECTIONS, NEW_CONNECTIONS_BURST, SOURCE_CONNECTIONS, SYN_PROXY
from podwire.errors import ConfigError
from podwire.loadbalancer.election import addresses_of
from podwire.loadbalancer.ranges import Address
from podwire.model.meta import key_of
from podwire.model.service import Service
from podwire.state.nft import Chain, Set
from podwire.state.nft_rules import Rule
from podwire.state.nft_text import parse_rule

_KEY = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}/[a-z0-9][a-z0-9-]{0,62}")
_RATE = re.compile(r"([1-9]\d{0,6})/(second|minute)")
_MOST = 1_000_000
_SET_SIZE = 65535
_RATE_TIMEOUT_S = 120
"""How long a source without new connections is remembered: longer than the unit of a rate."""
_BEFORE_TRANSLATION, _RAW, _BEFORE_FILTERS = -110, -300, -5
_FAMILIES: Mapping[int, tuple[str, str]] = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}
Kind = Literal["rate", "count", "syn"]
KINDS: Mapping[Kind, str] = {
    "rate": "new connections of one source above the rate",
    "count": "connections of one source above the limit",
    "syn": "SYN packets and answers to cookies",
}
"""The kinds of counted packets; those of ``syn`` are handled, not dropped."""


class Protection(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The limits of one Service."""

    key: str
    addresses: tuple[Address, ...] = ()
    tcp_ports: tuple[int, ...] = ()
    connections: int = 0
    """Of one source at a time; 0: no limit."""
    rate: int = 0
    """New connections of one source for each ``unit``; 0: no limit."""
    unit: str = "second"
    burst: int = 0
    syn_proxy: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no limit."""
        return not (self.connections or self.rate or self.syn_proxy)


def read_protection(service: Service) -> Protection:
    """The limits of a Service.

    Raises: ConfigError naming the Service and the annotation.
    """
    annotations, source = service.metadata.annotations, f"Service {key_of(service.metadata)}"
    if not _KEY.fullmatch(key_of(service.metadata)):
        raise ConfigError(source, "metadata.name", "expected the name of a Service, which chains and sets get")
    rate = _RATE.fullmatch(annotations.get(NEW_CONNECTIONS, "1/second"))
    if rate is None:
        problem = f"{annotations[NEW_CONNECTIONS]!r}: expected a number for each second or minute, such as 20/second"
        raise ConfigError(source, f"metadata.annotations[{NEW_CONNECTIONS}]", problem)
    number = int(rate[1]) if NEW_CONNECTIONS in annotations else 0
    proxy = annotations.get(SYN_PROXY, "false")
    if proxy not in ("true", "false"):
        raise ConfigError(source, f"metadata.annotations[{SYN_PROXY}]", f"{proxy!r}: expected true or false")
    return Protection(
        key=key_of(service.metadata),
        addresses=addresses_of(service),
        tcp_ports=tuple(
            sorted(port.port for port in service.spec.ports if port.protocol == "TCP" and 0 < port.port < 65536)
        ),
        connections=_number(source, SOURCE_CONNECTIONS, annotations),
        rate=number,
        unit=rate[2],
        burst=_number(source, NEW_CONNECTIONS_BURST, annotations) or number,
        syn_proxy=proxy == "true",
    )


def _number(source: str, name: str, annotations: Mapping[str, str]) -> int:
    text = annotations.get(name, "")
    if text and (not text.isdecimal() or not 1 <= int(text) <= _MOST):
        raise ConfigError(source, f"metadata.annotations[{name}]", f"{text!r}: expected a number from 1 to {_MOST}")
    return int(text or 0)


def read_protections(
    services: Iterable[Service], last_good: Mapping[str, Protection]
) -> tuple[dict[str, Protection], dict[str, str]]:
    """The limits by Service, and the problems of wrong annotations; such a Service keeps its last good limits."""
    protections, problems = {}, {}
    for service in services:
        key = key_of(service.metadata)
        try:
            protection = read_protection(service)
        except ConfigError as problem:
            problems[key] = str(problem)
            if key not in last_good:
                continue
            protection = replace(last_good[key], addresses=addresses_of(service))
        if not protection.is_empty:
            protections[key] = protection
    return protections, problems


def protection_sets(protections: Iterable[Protection]) -> Iterator[Set]:
    """The sets of sources; the kernel adds them."""
    for item in protections:
        for version in sorted({address.version for address in item.addresses}):
            kind = _FAMILIES[version][1]
            if item.rate:
                flags = ("dynamic", "timeout")
                yield Set(
                    name=_set_name("rate", version, item),
                    key=(kind,),
                    flags=flags,
                    size=_SET_SIZE,
                    timeout_s=_RATE_TIMEOUT_S,
                )
            if item.connections:
                yield Set(name=_set_name("count", version, item), key=(kind,), flags=("dynamic",), size=_SET_SIZE)


def protection_chains(protections: Iterable[Protection]) -> Iterator[Chain]:
    """The chains with the limits, and those that lead to them."""
    items = tuple(protections)
    limits = [rule for item in items for rule in _jumps(item)]
    if limits:
        yield _chain("limits", "prerouting", _BEFORE_TRANSLATION, limits)
        yield _chain("limits-own", "output", _BEFORE_TRANSLATION, limits)
    for item in items:
        if item.rate:
            bound = f"limit rate over {item.rate}/{item.unit} burst {item.burst} packets"
            yield Chain(name=f"rate-{item.key}", rules=tuple(_bounds(item, "update", "rate", bound)))
        if item.connections:
            bound = f"ct count over {item.connections}"
            yield Chain(name=f"count-{item.key}", rules=tuple(_bounds(item, "add", "count", bound)))
    proxied = [item for item in items if item.syn_proxy and item.tcp_ports]
    if not proxied:
        return
    syn = "tcp flags & fin,syn,rst,ack == syn notrack"
    raw = [_rule(f"{match} {syn}", item) for item in proxied for match in _ports(item)]
    yield _chain("untracked", "prerouting", _RAW, raw)
    for item in proxied:
        proxy = parse_rule("counter synproxy mss 1460 wscale 7 timestamp sack-perm")
        yield Chain(name=f"syn-{item.key}", rules=(proxy,))
    cookies = [
        _rule(f"{match} {end}", item)
        for item in proxied
        for match in _ports(item)
        for end in (f"ct state invalid,untracked jump syn-{item.key}", "ct state invalid drop")
    ]
    yield _chain("cookies", "input", _BEFORE_FILTERS, cookies)
    yield _chain("cookies-forward", "forward", _BEFORE_FILTERS, cookies)


def _set_name(kind: Kind, version: int, item: Protection) -> str:
    """The name has the limit: elements keep the one with which they were added, so another limit needs another set."""
    limit = f"{item.rate}/{item.unit}/{item.burst}" if kind == "rate" else f"{item.connections}"
    return f"{kind}{version}-{limit}-{item.key}"


def _chain(name: str, hook: str, priority: int, rules: Iterable[Rule]) -> Chain:
    return Chain(name=name, type="filter", hook=hook, priority=priority, rules=tuple(rules))


def _rule(text: str, item: Protection) -> Rule:
    return replace(parse_rule(text), comment=f"Service {item.key}"[:128])


def _jumps(item: Protection) -> Iterator[Rule]:
    for address in item.addresses:
        match = f"{_FAMILIES[address.version][0]} daddr {address} ct state new"
        if item.rate:
            yield _rule(f"{match} jump rate-{item.key}", item)
        if item.connections:
            yield _rule(f"{match} jump count-{item.key}", item)


def _bounds(item: Protection, verb: str, kind: Kind, bound: str) -> Iterator[Rule]:
    for version in sorted({address.version for address in item.addresses}):
        source = f"{_FAMILIES[version][0]} saddr"
        text = f"{verb} @{_set_name(kind, version, item)} {{ {source} {bound} }} counter drop"
        yield replace(parse_rule(text), comment=KINDS[kind])


def _ports(item: Protection) -> Iterator[str]:
    """Matches of the packets to each port of the Service."""
    for address in item.addresses:
        for port in item.tcp_ports:
            yield f'iifname != "lo" {_FAMILIES[address.version][0]} daddr {address} tcp dport {port}'
