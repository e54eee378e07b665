"""The network state of one namespace: devices, addresses, routes, neighbours, forwarding entries, rules, sysctls.

A :class:`NetworkState` is a set of values in canonical order. ``str()`` prints one object per line in the words of
ip(8), :func:`parse` reads that back. :class:`OwnerMark` tells which objects of a namespace belong to one owner. A part
of podwire states its whole share: objects that carry its mark and are not in the share are deleted; other objects are
not changed. The marks: protocol number of routes, rules, neighbours and addresses; alias of devices; a forwarding entry
belongs to the owner of its device. Sysctls are written and never removed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter, eq
from typing import Any, TypeVar

from msgspec.structs import force_setattr, replace

from podwire.errors import ConfigError
from podwire.state import grammar, link, route
from podwire.state.link import Link
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl
from podwire.state.value import Value, with_field

Object = Link | Address | Route | Neighbour | Fdb | FibRule | Sysctl

T = TypeVar("T")

_FEW = 16
"""Where at most one value of this many is new, each new value is inserted; otherwise all values are sorted again."""


class NetworkState(Value, frozen=True):
    """The objects of one namespace, each tuple sorted and without duplicates."""

    links: tuple[Link, ...] = ()
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    fdb: tuple[Fdb, ...] = ()
    rules: tuple[FibRule, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            values = getattr(self, field)
            if type(values) is not tuple or len(values) > 1:
                force_setattr(self, field, _sorted(field, values))

    def __str__(self) -> str:
        return "".join(f"{value}\n" for value in self.objects())

    def lines(self) -> Iterator[str]:
        """The text, one object per line."""
        return map(str, self.objects())

    def objects(self) -> Iterable[Object]:
        """All values: links first, then in the order of the fields."""
        for field in self.__struct_fields__:
            yield from getattr(self, field)

    def link(self, name: str) -> Link | None:
        """The device of that name, or None."""
        return next((candidate for candidate in self.links if candidate.name == name), None)


def _sorted(field: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The values in order and without duplicates."""
    if field == "links":
        return tuple(sorted(dict.fromkeys(values), key=attrgetter("name")))
    ordered = sorted(values)
    if any(map(eq, ordered, islice(ordered, 1, None))):
        ordered = list(dict.fromkeys(ordered))
    return tuple(ordered)


def merge(states: Iterable[NetworkState]) -> NetworkState:
    """One state that holds the objects of all; cheap where one state has nearly all objects of a kind."""
    every = tuple(states)
    return in_order(
        {field: _merged(field, [getattr(state, field) for state in every]) for field in NetworkState.__struct_fields__}
    )


def _merged(field: str, tuples: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The values of tuples that are in order."""
    longest = max(tuples, key=len, default=())
    few = sum(map(len, tuples)) - len(longest)
    if not few:
        return longest
    if few * _FEW > len(longest) or field == "links":
        return _sorted(field, chain.from_iterable(tuples))
    values = list(longest)
    for value in chain.from_iterable(entries for entries in tuples if entries is not longest):
        insert(values, value)
    return tuple(values)


def insert(values: list[Any], value: Any) -> None:
    """Adds a value to values in order, unless they have it; for all objects but links."""
    place = bisect_left(values, value)
    if place == len(values) or values[place] != value:
        values.insert(place, value)


class OwnerMark(Value, frozen=True):
    """The mark that identifies the objects of one owner.

    ``route_protocol`` marks routes, rules, neighbours and addresses (1..255). ``alias_prefix`` marks devices: the alias
    is the prefix, or continues it with a slash, a space or a colon. ``links`` are further device names that belong to
    the owner with any alias. A device without a kind (``lo``, a card) is never deleted.
    """

    route_protocol: int
    alias_prefix: str = ""
    links: tuple[str, ...] = ()

    def owns_link(self, candidate: Link) -> bool:
        """Whether the device carries the mark."""
        return candidate.name in self.links or self._marks(candidate.alias)

    def _marks(self, alias: str) -> bool:
        prefix = self.alias_prefix
        if not prefix or not alias.startswith(prefix):
            return False
        return len(alias) == len(prefix) or not prefix[-1].isalnum() or alias[len(prefix)] in "/ :"

    def stamp(self, state: NetworkState) -> NetworkState:
        """The state in which every object without a mark has this one."""
        proto, alias = self.route_protocol, self.alias_prefix
        links = tuple(replace(x, alias=alias) if x.kind and not x.alias else x for x in state.links)
        return in_order(
            {
                "links": links,
                "addresses": _stamped(state.addresses, proto),
                "routes": _stamped(state.routes, proto),
                "neighbours": _stamped(state.neighbours, proto),
                "fdb": state.fdb,
                "rules": _stamped(state.rules, proto),
                "sysctls": state.sysctls,
            }
        )

    def share(self, have: NetworkState) -> NetworkState:
        """The objects of ``have`` that carry the mark."""
        links = tuple(x for x in have.links if self.owns_link(x))
        names = {x.name for x in links}
        proto = self.route_protocol
        return in_order(
            {
                "links": links,
                "addresses": tuple(x for x in have.addresses if x.proto == proto or (x.link in names and _ours(x))),
                "routes": tuple(x for x in have.routes if x.proto == proto),
                "neighbours": tuple(x for x in have.neighbours if x.proto == proto),
                "fdb": tuple(x for x in have.fdb if x.link in names),
                "rules": tuple(x for x in have.rules if x.proto == proto),
            }
        )


def in_order(fields: Mapping[str, tuple[Any, ...]]) -> NetworkState:
    """A state of tuples that are sorted and without duplicates, which is not checked: that takes 10 ms for 10,000."""
    state = NetworkState()
    for field, values in fields.items():
        force_setattr(state, field, values)
    return state


def _stamped(values: tuple[Any, ...], proto: int) -> tuple[Any, ...]:
    """The values with the mark where they have none, in order."""
    marked = sum(1 for x in values if x.proto)
    if not marked:
        return tuple(with_field(x, "proto", proto) for x in values)  # no two of them become equal
    if marked == len(values):
        return values
    stamped = [x if x.proto else with_field(x, "proto", proto) for x in values]
    return tuple(sorted(dict.fromkeys(stamped)))


def _ours(address: Address) -> bool:
    """Whether an address on an owned device was added by the owner; the kernel adds link-local ones itself."""
    return address.proto == 0 and not address.cidr.startswith("fe80:")


def _parse_rule(tokens: list[str]) -> FibRule:
    fields = grammar.parse(route.RULE, tokens)
    priority = fields["priority"]
    if not priority.isdecimal():
        raise ValueError(f"expected a number as the priority of the rule, not {priority!r}")
    return FibRule(**{**fields, "priority": int(priority)})


def _parse_sysctl(tokens: list[str]) -> Sysctl:
    if len(tokens) != 3 or tokens[1] != "=":
        raise ValueError("expected: sysctl PATH = VALUE, for example sysctl net/ipv4/ip_forward = 1")
    return Sysctl(tokens[0], tokens[2])


_PARSERS: dict[str, tuple[str, Callable[[list[str]], Any]]] = {
    "link": ("links", link.parse),
    "address": ("addresses", lambda tokens: Address(**grammar.parse(route.ADDRESS, tokens))),
    "route": ("routes", lambda tokens: Route(**grammar.parse(route.ROUTE, tokens))),
    "neighbour": ("neighbours", lambda tokens: Neighbour(**grammar.parse(route.NEIGHBOUR, tokens))),
    "fdb": ("fdb", lambda tokens: Fdb(**grammar.parse(route.FDB, tokens))),
    "rule": ("rules", _parse_rule),
    "sysctl": ("sysctls", _parse_sysctl),
}


def parse(text: str, source: str = "network state") -> NetworkState:
    """The state that the lines of ``text`` describe; empty lines and lines starting with ``#`` are ignored.

    Raises: ConfigError naming the line.
    """
    parts: dict[str, list[Any]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        noun, *tokens = grammar.split(line)
        try:
            if noun not in _PARSERS:
                raise ValueError(f"unknown object {noun!r}: expected one of {', '.join(_PARSERS)}")
            field, read = _PARSERS[noun]
            parts.setdefault(field, []).append(read(tokens))
        except (ValueError, TypeError) as failure:
            raise ConfigError(source, f"line {number}", str(failure)) from failure
    return NetworkState(**{field: tuple(values) for field, values in parts.items()})
