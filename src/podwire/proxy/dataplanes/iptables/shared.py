"""Chains to which every Service adds rules, divided into parts when they have many (pure).

A packet passes the rules of a chain one after the other, and rules that another program deletes are put back chain by
chain. So a chain with more than :data:`MOST_RULES` rules keeps none of them: they are in parts, chains of their own. A
part has the rules for addresses that end in the same 6 bits, or for 64 ports of a protocol. The chain leads to each
part by these bits or ports, and a packet that matches no rule of a part returns from it. With 1,000 Services a packet
passes about 80 rules instead of 1,000.

In ``nat`` the names of parts begin with ``KUBE-SVC-``: kube-proxy deletes such chains when it takes over.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from podwire.proxy.dataplanes.iptables.restore import IptablesDelta
from podwire.state.chain_marks import NODE_PORT_PARTS, SERVICE_PARTS
from podwire.state.iptables import ChainKey, Rules

MOST_RULES = 256
"""A chain with more rules is divided."""
_FEW = 8
"""Up to this many deletions in one chain, single rules are deleted."""
_BITS = 6
_PREFIXES = {("nat", "KUBE-SERVICES"): SERVICE_PARTS, ("nat", "KUBE-NODEPORTS"): NODE_PORT_PARTS}
"""The names of parts up to their number; other parts are named after their chain."""


class Part(NamedTuple):
    """The part of a divided chain to which a rule belongs."""

    name: str
    """The end of the name of the part's chain."""
    match: str
    """Matches the packets of the part."""


@lru_cache(maxsize=4096)
def part_of_address(address: str) -> Part:
    """The part of rules for an address."""
    parsed = ip_address(address)
    number, mask = int(parsed) % (1 << _BITS), (1 << _BITS) - 1
    return Part(f"{number:02X}", f"-d {type(parsed)(number)}/{type(parsed)(mask)}")


@lru_cache(maxsize=4096)
def part_of_port(protocol: str, port: int) -> Part:
    """The part of rules for a port of a protocol."""
    number = port >> _BITS
    first, last = number << _BITS, (number + 1 << _BITS) - 1
    return Part(f"{protocol[0].upper()}{number:03X}", f"-p {protocol} -m {protocol} --dport {first}:{last}")


RulesByPart = Mapping[Part, dict[str, None]]


class SharedChain:
    """One of these chains, with its parts."""

    def __init__(self, key: ChainKey, tail: Rules) -> None:
        """``tail``: the rules at its end, after the rules of Services."""
        self.key = key
        self._tail = tail
        self._prefix = _PREFIXES.get(key, key[1])
        self._rules: dict[Part, dict[str, None]] = {}
        """All rules, also while the chain is not divided."""
        self._size = 0
        self._written: dict[Part, None] = {}
        """The parts that were written; none while the chain is not divided."""
        self._inserted: dict[Part, dict[str, None]] = {}
        self._deleted: dict[Part, dict[str, None]] = {}

    def insert(self, rule: str, part: Part) -> None:
        """Adds a rule; :meth:`write` says how."""
        self._rules.setdefault(part, {})[rule] = None
        self._inserted.setdefault(part, {})[rule] = None
        self._size += 1

    def delete(self, rule: str, part: Part) -> None:
        """Takes a rule away; :meth:`write` says how."""
        del self._rules[part][rule]
        self._deleted.setdefault(part, {})[rule] = None
        self._size -= 1

    def chains(self) -> Iterator[tuple[str, Rules]]:
        """The chain and its parts, by name."""
        for part in (None, *self._written):
            yield self._key(part)[1], self._chain(part)

    def write(self, delta: IptablesDelta) -> None:
        """Adds to ``delta`` what changed since the last call."""
        inserted, deleted, self._inserted, self._deleted = self._inserted, self._deleted, {}, {}
        for part in deleted:
            if not self._rules[part]:
                del self._rules[part]
        before, divided = self._written, self._size > MOST_RULES
        self._written = dict.fromkeys(self._rules) if divided else {}
        if divided != bool(before):
            delta.rewrite.update({self._key(part): self._chain(part) for part in (None, *self._written)})
            delta.dropped.update({self._key(part): None for part in before})
        elif divided:
            self._write_parts(inserted, deleted, before, delta)
        else:
            self._write_chain(None, _flat(inserted), _flat(deleted), delta)

    def _write_parts(
        self, inserted: RulesByPart, deleted: RulesByPart, before: Mapping[Part, None], delta: IptablesDelta
    ) -> None:
        """Adds what changed in the parts, and the rules that lead to parts that are new or gone."""
        for part in dict.fromkeys((*inserted, *deleted)):
            if part not in self._rules:
                delta.dropped[self._key(part)] = None
            elif part not in before:
                delta.created[self._key(part)] = self._chain(part)
            else:
                self._write_chain(part, inserted.get(part, {}), deleted.get(part, {}), delta)
        new = {self._jump(part): None for part in self._written if part not in before}
        gone = {self._jump(part): None for part in before if part not in self._written}
        self._write_chain(None, new, gone, delta)

    def _write_chain(
        self, part: Part | None, inserted: dict[str, None], deleted: dict[str, None], delta: IptablesDelta
    ) -> None:
        """Adds changes of single rules of a part or the chain itself, or all its rules when the changes are many."""
        size = len(self._rules[part]) if part else len(self._written) or self._size
        if len(deleted) > _FEW or len(inserted) > max(_FEW, size // 2):
            delta.rewrite[self._key(part)] = self._chain(part)
            return
        if inserted:
            delta.insert[self._key(part)] = inserted
        if deleted:
            delta.delete[self._key(part)] = deleted

    def _key(self, part: Part | None) -> ChainKey:
        return (self.key[0], f"{self._prefix}-{part.name}") if part else self.key

    def _chain(self, part: Part | None) -> Rules:
        """The rules of a part, or of the chain itself."""
        if part:
            return tuple(self._rules[part])
        head = map(self._jump, self._written) if self._written else _flat(self._rules)
        return (*head, *self._tail)

    def _jump(self, part: Part) -> str:
        return f"{part.match} -j {self._key(part)[1]}"


def _flat(rules_by_part: RulesByPart) -> dict[str, None]:
    return {rule: None for rules in rules_by_part.values() for rule in rules}
