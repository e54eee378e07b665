"""The rules of a profile, under numbers that stay, and the port table of any set of these rules (pure).

A set of numbers is the same before and after other policies come or go, so what is kept for such a set stays valid. A
table of NetworkPolicies in force whose rules name single ports or all ports costs one step for each port; other tables
are built rule by rule (:class:`~podwire.policy.ports.PortTableBuilder`).
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from podwire.model.policy import IPBlock
from podwire.policy.annotations import ALL, DROPS, NONE
from podwire.policy.audit import AuditScope, mark
from podwire.policy.compiled import CompiledPolicy, CompiledRule, NamedPort
from podwire.policy.portchanges import with_ports
from podwire.policy.ports import (
    EVERY_PORT,
    EVERYTHING,
    PROTOCOLS,
    PortTable,
    PortTableBuilder,
    Ruling,
    Selection,
    table_of_ports,
)

NO_POLICY = Ruling(accept=True)
"""No policy applies."""

Key = TypeVar("Key")
_Order = tuple[int, int, str, int]
"""Tier, priority, policy, place: rules are evaluated in this order."""


class ProfilePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The NetworkPolicies of a profile by their keys, in order."""

    isolating: tuple[str, ...] = ()
    """Those in force; empty: the pods are not isolated."""
    audited: tuple[str, ...] = ()
    """Those in audit."""


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """The ruling for traffic that no rule allows."""

    isolated: bool = False
    """Whether NetworkPolicies in force select the pods."""
    audited: bool = False
    """Whether NetworkPolicies in audit select the pods."""
    log: str = ""
    """The log setting for denials because no rule allows."""


class SinglePortRules:
    """The rules that decide single ports, and those that decide all other ports of a protocol, by their numbers.

    The table that was made of them is kept, with the ports that other rules decide since then.
    """

    __slots__ = ("changed", "denied", "numbers", "ports", "table", "whole")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.numbers: frozenset[int] = frozenset()
        """The rules that were added."""
        self.ports: dict[str, dict[int, int]] = {protocol: {} for protocol in PROTOCOLS}
        """By protocol and port."""
        self.whole: dict[str, int] = {}
        """By protocol; the empty text stands for protocols without ports."""
        self.table: PortTable | None = None
        """The table as of the last call; None: it must be made anew."""
        self.denied: Ruling | None = None
        """The ruling of the table for traffic that no rule allows."""
        self.changed: list[tuple[str, int]] = []
        """The protocols and ports that another rule decides than in the table."""

    def add(self, selected: Selection, number: int, order: Mapping[int, _Order]) -> bool:
        """Adds a rule with the ports that it allows; returns False, with nothing added, if there are ranges of ports.

        ``order`` are the places of all rules in the order of evaluation.
        """
        if any(first != last for _, ranges in selected.ports if ranges != EVERY_PORT for first, last in ranges):
            return False
        for protocol, ranges in selected.ports:
            if ranges == EVERY_PORT:
                self._take_whole(protocol, number, order)
                continue
            for port, _ in ranges:
                if _take_first(self.ports[protocol], port, number, order):
                    self.changed.append((protocol, port))
        if selected.other:
            self._take_whole("", number, order)
        return True

    def _take_whole(self, protocol: str, number: int, order: Mapping[int, _Order]) -> None:
        if _take_first(self.whole, protocol, number, order):
            self.table = None


class ProfileRules:
    """The rules of some policies in one direction; ``named`` are the pods' own ports that ingress rules may name."""

    def __init__(self, direction: str, named: tuple[NamedPort, ...] = ()) -> None:
        self.direction = direction
        self._named = named
        self._policies: dict[str, CompiledPolicy] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._rules: dict[int, CompiledRule] = {}
        self._order: dict[int, _Order] = {}
        self._rulings: dict[int, Ruling] = {}
        self._next = 0
        self._of_selector: dict[int, set[int]] = {}
        self._of_nodes: dict[str, set[int]] = {}
        self._with_peers: dict[frozenset[int], set[int]] = {}
        """The rules with exactly these selectors and no other peers."""
        self._settings: Counter[tuple[bool, str]] = Counter()
        """How many NetworkPolicies have each pair of audit and log setting."""
        self._plain: dict[bool, list[str]] = {False: [], True: []}
        """The keys of NetworkPolicies in force, and of those in audit, in order."""
        self._other_tiers = 0
        self._isolation: Isolation | None = None
        self._matched: dict[frozenset[int], frozenset[int]] = {}
        self.names: Counter[str] = Counter()
        """How many rules name each port."""
        self.everyone: frozenset[int] = frozenset()
        """The rules that match every peer."""

    # Policies

    def add(self, policy: CompiledPolicy) -> tuple[int, ...]:
        """Adds a policy; returns the numbers of its rules."""
        tier = {"Admin": 0, "Baseline": 3}.get(policy.tier, 2 if policy.audit else 1)
        numbers = []
        for rule in policy.rules[self.direction]:
            number, self._next = self._next, self._next + 1
            self._rules[number] = rule
            self._order[number] = (tier, policy.priority, policy.key, rule.place)
            self._rulings[number] = Ruling(rule.action == "Accept", rule.policy, rule.place, rule.log)
            self._index(number, rule)
            numbers.append(number)
        self._policies[policy.key] = policy
        self._numbers[policy.key] = tuple(numbers)
        self._count(policy, 1)
        return tuple(numbers)

    def take_out(self, key: str) -> tuple[int, ...]:
        """Takes a policy out; its rules, whose numbers are returned, stay until :meth:`delete`."""
        self._count(self._policies.pop(key), -1)
        return self._numbers.pop(key)

    def delete(self, numbers: Iterable[int]) -> None:
        """Deletes rules."""
        for number in numbers:
            rule = self._rules.pop(number)
            del self._order[number], self._rulings[number]
            for selector in rule.selectors:
                _discard(self._of_selector, selector, number)
            for text in rule.nodes:
                _discard(self._of_nodes, text, number)
            if rule.only_selectors:
                _discard(self._with_peers, rule.selectors, number)
            self.names.subtract(name for name, _ in rule.names)
            self.everyone -= {number}
        self.names = +self.names
        self._matched.clear()

    def _index(self, number: int, rule: CompiledRule) -> None:
        for selector in rule.selectors:
            self._of_selector.setdefault(selector, set()).add(number)
        for text in rule.nodes:
            self._of_nodes.setdefault(text, set()).add(number)
        if rule.only_selectors:
            self._with_peers.setdefault(rule.selectors, set()).add(number)
        if rule.everyone:
            self.everyone |= {number}
        self.names.update(name for name, _ in rule.names)
        self._matched.clear()

    def _count(self, policy: CompiledPolicy, step: int) -> None:
        if policy.tier == "Namespace":
            self._settings[policy.audit, policy.log] += step
            keys = self._plain[policy.audit]
            if step > 0:
                insort(keys, policy.key)
            else:
                del keys[bisect_left(keys, policy.key)]
        else:
            self._other_tiers += step
        self._isolation = None

    @property
    def isolation(self) -> Isolation:
        """The ruling for traffic that no rule allows; it has no log setting only if a policy has none."""
        if self._isolation is None:
            self._isolation = self._isolated()
        return self._isolation

    def _isolated(self) -> Isolation:
        settings = {setting for setting, count in self._settings.items() if count}
        isolated = any(not audit for audit, _ in settings)
        logs = {log for audit, log in settings if audit != isolated}
        log = NONE if logs == {NONE} else DROPS if logs & {ALL, DROPS} else ""
        return Isolation(isolated=isolated, audited=any(audit for audit, _ in settings), log=log)

    @property
    def policies(self) -> ProfilePolicies:
        """The NetworkPolicies by their keys."""
        return ProfilePolicies(isolating=tuple(self._plain[False]), audited=tuple(self._plain[True]))

    # Rules

    @property
    def only_plain(self) -> bool:
        """Whether all policies are NetworkPolicies in force, which only allow."""
        return not self._other_tiers and not any(audit and count for (audit, _), count in self._settings.items())

    def in_order(self) -> tuple[CompiledRule, ...]:
        """All rules in the order of evaluation."""
        return tuple(self._rules[number] for number in sorted(self._rules, key=self._order.__getitem__))

    def __getitem__(self, number: int) -> CompiledRule:
        return self._rules[number]

    def selectors(self) -> Collection[int]:
        """The numbers of all selectors of pods."""
        return self._of_selector.keys()

    def blocks(self) -> Iterator[tuple[int, IPBlock]]:
        """All blocks, each with the number of its rule."""
        return ((number, block) for number, rule in self._rules.items() for block in rule.blocks)

    def matched(self, selectors: frozenset[int], nodes: Iterable[str] = ()) -> frozenset[int]:
        """The rules that match a peer, without those for everyone and those by its address."""
        own = frozenset(self._of_selector.keys() & selectors)
        rules = self._matched.get(own)
        if rules is None:
            rules = self._matched[own] = frozenset().union(*(self._of_selector[selector] for selector in own))
        return rules.union(*(self._of_nodes.get(text, ()) for text in nodes)) if nodes else rules

    def with_same_peers(self, number: int) -> int | None:
        """An older rule that matches the same peers by the same selectors; None: there is none."""
        rule = self._rules[number]
        same = self._with_peers.get(rule.selectors, ()) if rule.only_selectors else ()
        return next((other for other in same if other < number), None)

    # Tables

    def table(
        self,
        numbers: frozenset[int],
        named: tuple[NamedPort, ...],
        *,
        own_node: bool,
        memory: SinglePortRules | None = None,
    ) -> PortTable:
        """The table of a set of rules; ``named`` are the peer's named ports (egress).

        ``own_node``: NetworkPolicies do not apply. ``memory`` has the results of earlier calls for the same peers.
        """
        destination = self._named if self.direction == "Ingress" else named
        isolation = self.isolation
        if self.only_plain and isolation.isolated and not own_node:
            memory = memory if memory is not None else SinglePortRules()
            if self._learn(memory, numbers, destination):
                return self._of_single_ports(memory, _denied(isolation))
        rules = [self._rules[number] for number in sorted(numbers, key=self._order.__getitem__)]
        return _table(rules, destination, Isolation(log=isolation.log) if own_node else isolation)

    def _learn(self, memory: SinglePortRules, numbers: frozenset[int], named: tuple[NamedPort, ...]) -> bool:
        """Adds rules, which only allow, to ``memory``; returns whether each rule is for single ports or all ports."""
        if not memory.numbers <= numbers:
            memory.clear()
        for number in numbers - memory.numbers:
            if not memory.add(self._rules[number].ports_for(named), number, self._order):
                memory.clear()
                return False
        memory.numbers = numbers
        return True

    def _of_single_ports(self, memory: SinglePortRules, denied: Ruling) -> PortTable:
        """The table of rules; if only single ports differ from the table before, it costs these ports."""
        order, whole = self._order, memory.whole
        if memory.table is None or memory.denied != denied:
            rest = {protocol: self._ruling(whole.get(protocol), denied) for protocol in ("", *PROTOCOLS)}
            rulings = {
                protocol: {
                    port: self._rulings[number]
                    for port, number in sorted(own.items())
                    if protocol not in whole or order[number] < order[whole[protocol]]
                }
                for protocol, own in memory.ports.items()
            }
            memory.table, memory.denied = table_of_ports(rulings, rest), denied
        elif memory.changed:
            deciding = {(protocol, port): memory.ports[protocol][port] for protocol, port in memory.changed}
            changes = {
                key: self._rulings[number]
                for key, number in deciding.items()
                if key[0] not in whole or order[number] < order[whole[key[0]]]
            }
            memory.table = with_ports(memory.table, changes)
        memory.changed.clear()
        return memory.table

    def _ruling(self, number: int | None, denied: Ruling) -> Ruling:
        return denied if number is None else self._rulings[number]


def _take_first(chosen: dict[Key, int], key: Key, number: int, order: Mapping[int, _Order]) -> bool:
    """Keeps the rule that comes first in the order of evaluation; returns whether that is the new one."""
    before = chosen.get(key)
    if before is not None and order[before] <= order[number]:
        return False
    chosen[key] = number
    return True


def _discard(numbers: dict[Key, set[int]], key: Key, number: int) -> None:
    numbers[key].discard(number)
    if not numbers[key]:
        del numbers[key]


def _denied(isolation: Isolation) -> Ruling:
    """The pod is isolated and no rule allows the traffic."""
    return Ruling(accept=False, log=isolation.log)


def _table(rules: Sequence[CompiledRule], named: tuple[NamedPort, ...], isolation: Isolation) -> PortTable:
    """The table of some rules, which are in the order of evaluation."""
    denied = _denied(isolation)
    in_force = _decided([rule for rule in rules if not rule.audit], named, denied if isolation.isolated else None)
    if not isolation.audited and not any(rule.audit for rule in rules):
        return in_force
    scope = AuditScope(
        policies=frozenset(rule.policy for rule in rules if rule.audit and rule.tier != "Namespace"),
        isolating=not isolation.isolated,
        passing=tuple(
            (rule.ports_for(named), Ruling(accept=False, policy=rule.policy, rule=rule.place))
            for rule in rules
            if rule.audit and rule.tier == "Admin" and rule.action == "Pass"
        ),
    )
    whole = _decided(rules, named, denied if isolation.isolated or isolation.audited else None)
    return mark(in_force, whole, scope)


def _decided(rules: Sequence[CompiledRule], named: tuple[NamedPort, ...], denied: Ruling | None) -> PortTable:
    """The table of all tiers; ``denied`` is the ruling where no NetworkPolicy allows, None without isolation."""
    maker = PortTableBuilder()
    _decide(maker, (rule for rule in rules if rule.tier == "Admin"), named)
    if denied is not None:
        _decide(maker, (rule for rule in rules if rule.tier == "Namespace"), named)
        maker.decide(EVERYTHING, denied)
    _decide(maker, (rule for rule in rules if rule.tier == "Baseline"), named)
    return maker.table(rest=NO_POLICY)


def _decide(maker: PortTableBuilder, rules: Iterable[CompiledRule], named: tuple[NamedPort, ...]) -> None:
    """Applies the rules of one tier."""
    for rule in rules:
        ports: Selection = rule.ports_for(named)
        if rule.action == "Pass":
            maker.pass_on(ports)
        else:
            maker.decide(ports, Ruling(rule.action == "Accept", rule.policy, rule.place, rule.log))
    maker.next_tier()
