"""Addresses with the same port table: the groups of a profile's peers, and of its surroundings (pure).

An address is in a group if more rules apply to it than those for everyone and those with a block that contains the
address; all others have the table of their surroundings. Whole groups get other rules at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from podwire.policy.compiled import NamedPort
from podwire.policy.ports import PortTable, PortTableBuilder
from podwire.policy.profilerules import NO_POLICY, SinglePortRules

OWN_NODE = PortTableBuilder().table(rest=NO_POLICY)
NOTHING: frozenset[int] = frozenset()


class HostGroupKey(NamedTuple):
    """What the table of a group depends on, besides the rules for everyone."""

    rules: frozenset[int]
    """The numbers of the rules that match the peers, without the rules for everyone."""
    around: frozenset[int] = NOTHING
    """The numbers of the rules with blocks that contain the addresses."""
    named: tuple[NamedPort, ...] = ()
    """The peers' named ports that egress rules for them name."""
    own_node: bool = False
    """Whether the peer is the pods' own node, to which NetworkPolicies do not apply."""

    @property
    def surroundings(self) -> bool:
        """Whether all addresses of the same blocks have this key, whoever owns them."""
        return self.rules == self.around and not self.named and not self.own_node


class HostGroup:
    """Addresses with one port table."""

    __slots__ = ("addresses", "key", "memory", "shown", "table")

    def __init__(self, key: HostGroupKey) -> None:
        self.key = key
        self.addresses: dict[str, set[str]] = {"ip": set(), "ip6": set()}
        """By family; none for surroundings."""
        self.table = OWN_NODE
        self.memory = SinglePortRules()
        """How the table was made; a table with one more rule costs less."""
        self.shown = False
        """Whether the table differs from that of the surroundings; otherwise data planes leave the addresses out.
        Surroundings are shown while there are such addresses."""

    def __len__(self) -> int:
        return sum(map(len, self.addresses.values()))

    def all_addresses(self) -> Iterator[str]:
        """The addresses of both families."""
        for addresses in self.addresses.values():
            yield from addresses


MakeTable = Callable[[HostGroupKey, SinglePortRules], PortTable]


class HostGroups:
    """All groups of a profile; what changes is noted until :meth:`take_changes`."""

    def __init__(self, make: MakeTable) -> None:
        """``make`` makes the table of a key."""
        self._make = make
        self._groups: dict[HostGroupKey, HostGroup] = {}
        self._group_of: dict[str, HostGroup] = {}
        self._around: dict[frozenset[int], HostGroup] = {}
        self._changed: set[HostGroup] = set()
        self._moved: set[str] = set()

    def __iter__(self) -> Iterator[HostGroup]:
        return iter(tuple(self._groups.values()))

    def shown(self) -> Iterator[tuple[str, HostGroup]]:
        """The addresses whose table differs from that of their surroundings, with their groups."""
        return ((address, group) for address, group in self._group_of.items() if group.shown)

    def of(self, address: str) -> HostGroup | None:
        """The group of an address; None: only the rules for everyone and for its address apply."""
        return self._group_of.get(address)

    def surroundings(self, rules: frozenset[int] = NOTHING) -> HostGroup:
        """The group, without addresses, of all addresses that only these rules with blocks contain."""
        group = self._around.get(rules)
        if group is None:
            group = self._around[rules] = HostGroup(HostGroupKey(rules, rules))
            self._decide(group)
        return group

    def take_changes(self) -> tuple[set[HostGroup], set[str]]:
        """The changed groups, and the addresses that :meth:`move` moved, since the last call."""
        changes = self._changed, self._moved
        self._changed, self._moved = set(), set()
        return changes

    # Addresses

    def put(self, key: HostGroupKey, family: str, addresses: Collection[str]) -> None:
        """Adds addresses that are in no group; does nothing for the key of surroundings."""
        if addresses and not key.surroundings:
            group = self._with_key(key)
            own = group.addresses[family]
            own.update(addresses)
            self._group_of.update(dict.fromkeys(addresses, group))

    def move(self, addresses: Iterable[str], key: HostGroupKey) -> HostGroup | None:
        """Moves addresses to the group with a key; returns the group, None for surroundings."""
        into = None if key.surroundings else self._with_key(key)
        for address in addresses:
            family = "ip6" if ":" in address else "ip"
            before = self._group_of.get(address)
            if before is into:
                continue
            if before is not None:
                del self._group_of[address]
                before.addresses[family].discard(address)
                self._changed.add(before)
                if not before:
                    del self._groups[before.key]
            if into is not None:
                into.addresses[family].add(address)
                self._group_of[address] = into
        if into is not None:
            self._changed.add(into)
            if not into:
                del self._groups[key]
        return into

    def note(self, addresses: Iterable[str]) -> None:
        """Notes addresses as moved."""
        self._moved.update(addresses)

    def rekey(self, group: HostGroup, key: HostGroupKey) -> None:
        """Gives a group another key; if a group with this key exists, the addresses move there."""
        self._changed.add(group)
        if not key.surroundings and key not in self._groups:
            del self._groups[group.key]
            if key.named != group.key.named:
                group.memory.clear()
            group.key = key
            self._groups[key] = group
            return
        addresses = tuple(group.all_addresses())
        self.move(addresses, key)
        self.note(addresses)

    def _with_key(self, key: HostGroupKey) -> HostGroup:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = HostGroup(key)
            self._decide(group)
            self._changed.add(group)
        return group

    # Surroundings

    def rename_surroundings(self, rules: frozenset[int], after: frozenset[int]) -> None:
        """Gives surroundings other rules, unless there are some with these rules."""
        if rules and rules in self._around and after not in self._around:
            group = self._around[after] = self._around.pop(rules)
            group.key = HostGroupKey(after, after)
            self._changed.add(group)

    def surrounding_rules(self) -> tuple[frozenset[int], ...]:
        """The rules with blocks of all surroundings."""
        return tuple(self._around)

    def delete_surroundings(self, unused: Iterable[frozenset[int]]) -> None:
        """Deletes the surroundings with rules that no range has any more."""
        for rules in unused:
            group = self._around.pop(rules, None)
            if group is not None:
                group.shown = False
                self._changed.add(group)

    def note_surroundings(self, rules: Iterable[frozenset[int]]) -> None:
        """Notes surroundings as changed: those of one family have ended."""
        self._changed.update(self._around[own] for own in rules if own in self._around)

    # Tables

    def refresh(self, *, everywhere: bool) -> None:
        """Makes the tables of changed groups again; ``everywhere``: of all groups, and of the surroundings."""
        if everywhere:
            self._changed.update(self._around.values(), self._groups.values())
        for group in tuple(self._changed):
            if self._around.get(group.key.rules) is group:
                self._decide(group)
        for group in tuple(self._changed):
            if self._groups.get(group.key) is group:
                self._decide(group)

    def _decide(self, group: HostGroup) -> None:
        """Makes the table of a group."""
        table = self._make(group.key, group.memory)
        if table != group.table:
            group.table = table
        group.shown = group.key.surroundings or table != self.surroundings(group.key.around).table
