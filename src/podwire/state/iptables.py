"""The content of a table of iptables, or podwire's share of it, as iptables-save prints it.

A :class:`Ruleset` is one table of one family: whole chains, and single rules in chains of other owners, such as the
jumps from ``PREROUTING``. A rule is the text behind ``-A CHAIN``, in the words and the order of iptables-save: the
kernel is read by that program, so equal rules are equal texts. Counters are left out.

The text form is that of iptables-save with the family behind the table's name::

    *nat ip
    :KUBE-SERVICES
    -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
    COMMIT
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

Rules = tuple[str, ...]

ChainKey = tuple[str, str]
"""Table and chain."""

TABLES = ("filter", "nat")
"""The tables that podwire writes to."""


class ChainSize(NamedTuple):
    """How many rules a chain should hold; ``last``: a text of those behind all others, None: the order counts."""

    rules: int
    last: str | None = None


class Ruleset(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One table of one family."""

    family: str
    """``ip`` or ``ip6``."""
    table: str
    chains: Mapping[str, Rules] = {}
    """Whole chains of the owner, by name."""
    jumps: tuple[tuple[str, str], ...] = ()
    """(chain, rule) in chains of other owners."""

    @property
    def title(self) -> str:
        """The program and the table: ``iptables nat``, ``ip6tables filter``."""
        return f"{self.family}tables {self.table}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield f"*{self.table} {self.family}"
        for chain in self.chains:
            yield f":{chain}"
        yield from (f"-A {chain} {rule}" for chain, rule in self.jumps)
        for chain, rules in self.chains.items():
            yield from (f"-A {chain} {rule}" for rule in rules)
        yield "COMMIT"


def parse(lines: Iterable[str]) -> Ruleset:
    """The table in a text form.

    Raises: ValueError naming the wrong line.
    """
    family = table = ""
    chains: dict[str, list[str]] = {}
    jumps: list[tuple[str, str]] = []
    for line in lines:
        head, _, remainder = line.partition(" ")
        if head.startswith("*"):
            table, family = head[1:], remainder
        elif head.startswith(":"):
            chains[head[1:]] = []
        elif head == "-A":
            chain, _, rule = remainder.partition(" ")
            chains[chain].append(rule) if chain in chains else jumps.append((chain, rule))
        elif head != "COMMIT":
            raise ValueError(f"not a line of iptables-save: {line!r}")
    if family not in ("ip", "ip6") or not table:
        raise ValueError("expected *TABLE FAMILY as the first line, FAMILY one of ip and ip6")
    return Ruleset(family=family, table=table, chains={c: tuple(r) for c, r in chains.items()}, jumps=tuple(jumps))


_PROTOCOL_NUMBERS = {"ipencap": "4", "ipv6": "41", "gre": "47"}
_PROTOCOL = re.compile(r" -p (ipencap|ipv6|gre) ")


def _canonical(text: str) -> str:
    """The output of iptables-save in a form that does not depend on the version of the program.

    1.8.9 prints two spaces before a counter's name. Protocols that /etc/protocols names are printed by name.
    """
    text = text.replace("--nfacct-name  ", "--nfacct-name ")
    if any(f" -p {name} " in text for name in _PROTOCOL_NUMBERS):
        text = _PROTOCOL.sub(lambda match: f" -p {_PROTOCOL_NUMBERS[match[1]]} ", text)
    return text


def parse_save(text: str) -> dict[str, dict[str, list[str]]]:
    """Rules by chain by table, from the output of iptables-save."""
    tables: dict[str, dict[str, list[str]]] = {}
    chains: dict[str, list[str]] = {}
    for line in _canonical(text).splitlines():
        if line.startswith("-A "):
            _, chain, rule = line.split(" ", 2)
            chains[chain].append(rule)
        elif line.startswith(":"):
            chains[line[1:].split(" ", 1)[0]] = []
        elif line.startswith("*"):
            chains = tables.setdefault(line[1:], {})
    return tables
