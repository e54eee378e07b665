"""The groups of a profile's peers that have the same port table, and what changed in them (pure).

:mod:`podwire.policy.profile` decides which group a peer belongs to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from podwire.policy.blocks import Blocks
from podwire.policy.compiled import NamedPort
from podwire.policy.ports import PortTable, PortTableBuilder, Range
from podwire.policy.profilerules import NO_POLICY, SinglePortRules

OWN_NODE = PortTableBuilder().table(rest=NO_POLICY)
"""The table of the pods' own node, which always reaches them."""
NO_RULES: frozenset[int] = frozenset()


class HostGroupKey(NamedTuple):
    """The inputs of a group's table, besides the rules for all peers."""

    rules: frozenset[int]
    """The numbers of the rules that match the peers, without the rules for everyone."""
    around: frozenset[int] = NO_RULES
    """The numbers of the rules with blocks that contain the addresses."""
    named: tuple[NamedPort, ...] = ()
    """The peers' named ports that egress rules name."""
    own_node: bool = False
    """Whether the peer is the pods' own node, to which NetworkPolicies do not apply."""

    @property
    def surroundings(self) -> bool:
        """Whether all addresses of the same blocks have this key, independently of their owners."""
        return self.rules == self.around and not self.named and not self.own_node


class HostGroup:
    """Addresses with one port table."""

    __slots__ = ("addresses", "key", "memory", "shown", "table")

    def __init__(self, key: HostGroupKey) -> None:
        self.key = key
        self.addresses: dict[str, set[str]] = {"ip": set(), "ip6": set()}
        """By family."""
        self.table = OWN_NODE
        self.memory = SinglePortRules()
        """How the table was made; a table with one more rule costs less."""
        self.shown = False
        """Whether the table differs from that of the surroundings; otherwise data planes leave the addresses out."""

    def __len__(self) -> int:
        return sum(map(len, self.addresses.values()))

    def all_addresses(self) -> Iterator[str]:
        """The addresses of both families."""
        for addresses in self.addresses.values():
            yield from addresses


class ProfileChange(msgspec.Struct, kw_only=True):
    """The changes of a profile since the last :meth:`HostGroups.take_change`."""

    groups: set[HostGroup] = set()
    """Groups with another table, new groups, and groups that are empty now."""
    hosts: set[str] = set()
    """Addresses that moved from one group to another."""
    lost: set[str] = set()
    """The addresses of :attr:`hosts` for which traffic is denied now that was accepted before."""
    lessened: bool = False
    """Whether a policy that changed may deny traffic now that was accepted before."""
    ranges: dict[int, list[Range]] = {}
    """By family (4, 6): where ranges came, went or have other rules; no range is partly in one of these regions."""
    left_groups: set[HostGroup] = set()
    """Groups of the surroundings that some addresses left for other groups."""


MakeTable = Callable[[HostGroupKey, SinglePortRules | None], PortTable]
"""Makes the table of a group with a key; the second argument has the results of earlier calls for the same group."""


class HostGroups:
    """The groups of peers, and those of the surroundings: of all addresses that the same rules with blocks contain."""

    def __init__(self, make: MakeTable, blocks: Mapping[int, Blocks]) -> None:
        """``blocks`` are the ranges of addresses of each family (4, 6)."""
        self._make = make
        self._blocks = blocks
        self._groups: dict[HostGroupKey, HostGroup] = {}
        self._group_of: dict[str, HostGroup] = {}
        self._around: dict[frozenset[int], HostGroup] = {}
        self._change = ProfileChange()
        self._altered: set[HostGroup] = set()
        """The groups with another table, or shown or hidden, since the last :meth:`take_change`."""

    @property
    def change(self) -> ProfileChange:
        """The changes since the last :meth:`take_change`, to add to."""
        return self._change

    def of(self, address: str) -> HostGroup | None:
        """The group of an address, also if it has the table of its surroundings; None: it is in no group."""
        return self._group_of.get(address)

    def altered(self, group: HostGroup) -> bool:
        """Whether a group has another table, or is shown or hidden, since the last :meth:`take_change`."""
        return group in self._altered

    def add(self, key: HostGroupKey, addresses: Mapping[str, Iterable[str]]) -> None:
        """Adds addresses of peers, by family, to the group with a key."""
        group = self.with_key(key)
        for family, own in addresses.items():
            group.addresses[family].update(own)
            self._group_of.update(dict.fromkeys(own, group))

    @property
    def hosts(self) -> dict[str, PortTable]:
        """The table of each address that differs from the table of :attr:`blocks` and :attr:`default` there."""
        return {address: group.table for address, group in self._group_of.items() if group.shown}

    def groups(self) -> Iterable[HostGroup]:
        """All groups of peers."""
        return self._groups.values()

    def group(self, address: str) -> HostGroup | None:
        """The group of an address; None: the address has the table of its surroundings."""
        group = self._group_of.get(address)
        return group if group is not None and group.shown else None

    def surroundings(self, rules: frozenset[int] = NO_RULES) -> HostGroup:
        """The group, without addresses, of all addresses that only these rules with blocks contain."""
        group = self._around.get(rules)
        if group is None:
            group = self._around[rules] = HostGroup(HostGroupKey(rules, rules))
            group.table, group.shown = self._make(group.key, group.memory), True
        return group

    @property
    def default(self) -> PortTable:
        """The table of all addresses outside :attr:`hosts` and all blocks."""
        return self.surroundings().table

    def ranges(self, family: int, region: Range | None = None) -> tuple[tuple[int, int, HostGroup], ...]:
        """Disjoint ranges of addresses as numbers, with the group that holds there for all but :attr:`hosts`.

        ``region``: only those that overlap this range; None: all.
        """
        around, blocks = self._around, self._blocks[family]
        intervals = blocks.between(*region) if region is not None else blocks.intervals
        for rules in [rules for _, _, rules in intervals if rules not in around]:
            self.surroundings(rules)
        return tuple([(first, last, around[rules]) for first, last, rules in intervals])

    def with_key(self, key: HostGroupKey) -> HostGroup:
        """The group with a key, which is made if there is none."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = HostGroup(key)
            self._decide(group)
            self._change.groups.add(group)
        return group

    def move(self, address: str, after: HostGroup | None) -> None:
        """Moves an address from its group to another one."""
        family = "ip6" if ":" in address else "ip"
        before = self._group_of.pop(address, None)
        if before is not None:
            before.addresses[family].discard(address)
            self._change.groups.add(before)
            if not before:
                del self._groups[before.key]
        if after is not None:
            after.addresses[family].add(address)
            self._group_of[address] = after
            self._change.groups.add(after)

    def take_change(self) -> ProfileChange:
        """Returns what changed since the last call."""
        change, self._change = self._change, ProfileChange()
        self._altered.clear()
        return change

    def move_all(self, addresses: Iterable[str], key: HostGroupKey) -> None:
        """Moves addresses from their groups to the group with a key."""
        after = None if key.surroundings else self.with_key(key)
        for address in addresses:
            self.move(address, after)
        self._change.hosts.update(addresses)

    def rekey(self, group: HostGroup, key: HostGroupKey) -> None:
        """Gives a group another key; if a group with that key exists, the addresses move there."""
        if key == group.key:
            return
        self._change.groups.add(group)
        if key.surroundings or key in self._groups:
            self.move_all(tuple(group.all_addresses()), key)
            return
        del self._groups[group.key]
        group.key = key
        self._groups[key] = group

    def surround(
        self, number: int, touched: Iterable[frozenset[int]], *, added: bool
    ) -> dict[frozenset[int], frozenset[int]]:
        """Follows a rule whose blocks were added to the ranges, or removed from them.

        ``touched`` are the rules of the intervals that changed, as they were. If all addresses of a group of the
        surroundings now have the same other rules, and no other addresses had these rules, the group stays and gets
        these rules. Otherwise addresses left the group. Returns the rules that no interval has any more, each with the
        rules that all of its addresses have now.
        """
        replaced: dict[frozenset[int], frozenset[int]] = {}
        if added:
            self._change.left_groups.update(group for group in (self._around.get(NO_RULES),) if group is not None)
        for rules in touched:
            if not (added or number in rules):
                continue
            after = rules | {number} if added else rules - {number}
            in_use = any(blocks.uses(rules) for blocks in self._blocks.values())
            if not in_use:
                replaced[rules] = after
            group = self._around.get(rules)
            if group is None:
                continue
            if not after or after in self._around or in_use:
                self._change.left_groups.add(group)
                continue
            del self._around[rules]
            group.key = HostGroupKey(after, after)
            self._around[after] = group
            self._change.groups.add(group)
            self._decide(group)
        return replaced

    def forget_surroundings(self) -> None:
        """Deletes the groups of ranges that do not exist any more."""
        for rules in {rules for blocks in self._blocks.values() for rules in blocks.take_orphaned()}:
            if not any(blocks.uses(rules) for blocks in self._blocks.values()):
                group = self._around.pop(rules, None)
            else:
                group = self._around.get(rules)
            if group is not None:
                self._change.groups.add(group)

    def refresh(self, *, everywhere: bool) -> None:
        """Makes the tables of changed groups again; ``everywhere``: of all groups, and of the surroundings."""
        if everywhere:
            for around in self._around.values():
                self._decide(around)
            self._change.groups.update(self._around.values(), self._groups.values())
        for group in self._change.groups:
            if self._groups.get(group.key) is group:
                self._decide(group)

    def _decide(self, group: HostGroup) -> None:
        """Makes the table of a group."""
        table = self._make(group.key, group.memory)
        shown = group.key.surroundings or table != self.surroundings(group.key.around).table
        if table == group.table and shown == group.shown:
            return
        if table != group.table:
            group.table = table
        group.shown = shown
        self._altered.add(group)


def regroup(groups: HostGroups, group: HostGroup, addresses: list[str], key: HostGroupKey) -> None:
    """Gives some addresses of a group another key, or the whole group if these are all of its addresses."""
    if len(group) == len(addresses):
        groups.rekey(group, key)
    else:
        groups.move_all(addresses, key)
