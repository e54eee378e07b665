"""The chains of port tables and rules of one family, which all profiles share, for every data plane (pure).

A chain exists until its last use is dropped. A port table is changed in place if all that leads to its chain gets the
new table: then a policy for ten thousand peers costs one element, not ten thousand. Nothing may leave such a chain in
the same change: a packet that was led to the chain just before would be checked by a table that never was its own.

The name of a new chain is a hash of its meaning. A table that was changed in place keeps its name. So that a restart
with nothing changed writes nothing, tables get the names that the kernel's chains with the same contents have.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from itertools import count
from operator import xor
from typing import NamedTuple, Protocol

from podwire.policy.hostgroups import HostGroup
from podwire.policy.portchanges import Entries, TableChange, change_of
from podwire.policy.ports import PortTable, Range, Ruling
from podwire.policy.profile import Profile
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleHit, RuleIdentity, made_together, rule_identity

_KEPT_HITS = 1024
"""How many deleted rules are kept: their counts and log lines are still looked up."""


class _Meaning:
    """A table with the profile that it belongs to; ``digest`` is the exclusive or of the hashes of its entries."""

    __slots__ = ("digest", "direction", "owner", "table")

    def __init__(self, table: PortTable, profile: ProfileName, rulings: Iterable[Ruling], digest: int) -> None:
        self.direction = profile.direction
        together = made_together(table.other) or any(map(made_together, rulings))
        self.owner = profile if together else None
        self.table = table
        self.digest = digest

    def __hash__(self) -> int:
        return self.digest

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Meaning)
            and self.direction == other.direction
            and self.owner == other.owner
            and self.table == other.table
        )


class ChainWriter(Protocol):
    """Writes the chains of tables and rules into the contents of a data plane."""

    def table_name(self, table: PortTable, profile: ProfileName, attempt: int) -> str:
        """The name of a new chain of a table: a hash of its meaning and of the number of the attempt."""
        ...

    def rule_name(self, identity: RuleIdentity) -> str:
        """The name of the chain of a rule."""
        ...

    def signature(self, table: PortTable, profile: ProfileName) -> str:
        """The contents of a table's chain, as text without the name of the chain."""
        ...

    def add_table(self, name: str, table: PortTable, profile: ProfileName) -> None:
        """Adds the chain of a table; the chains of its rules exist."""
        ...

    def change_table(self, name: str, change: TableChange, profile: ProfileName) -> bool:
        """Changes the table of a chain, if that is possible in one step that packets see whole or not at all.

        The chains of the new rules exist; those of the old rules exist until the call returns.
        """
        ...

    def remove_table(self, name: str) -> None:
        """Removes the chain of a table."""
        ...

    def add_rule(self, name: str, identity: RuleIdentity, text: str) -> None:
        """Adds the chain of a rule, or gives the chain another text for readers of the kernel's rules."""
        ...

    def remove_rule(self, name: str) -> None:
        """Removes the chain of a rule."""
        ...


class TableChains:
    """The chains of port tables and rules of one family, with the number of uses of each."""

    def __init__(self, writer: ChainWriter, known: Mapping[str, str]) -> None:
        """``known`` are the names of the kernel's chains of tables by :meth:`ChainWriter.signature`."""
        self._writer = writer
        self._known = dict(known)
        self._known_names = frozenset(known.values())
        self._reserved = set(self._known_names)
        """Names of chains that the kernel may hold with other contents."""
        self._uses: Counter[str] = Counter()
        self._meanings: dict[str, _Meaning] = {}
        self._names: dict[_Meaning, str] = {}
        self._rules: dict[str, dict[Ruling, str]] = {}
        """The chains of rules that the chain of each table leads to."""
        self._entries: dict[str, Counter[Ruling]] = {}
        """How many entries of each table have each ruling; protocols without ports count as one entry."""
        self._identities: dict[str, RuleIdentity] = {}
        self._denials: dict[ProfileName, set[str]] = {}
        self._texts: dict[str, str] = {}
        """The texts of the chains of rules."""
        self._gone: dict[str, RuleHit] = {}
        self._profiles: dict[ProfileName, Profile] = {}
        self._subjects: dict[ProfileName, tuple[str, ...]] = {}

    def know(self, name: ProfileName, profile: Profile) -> bool:
        """Takes over the policies of a profile, which :meth:`meaning` names, and the selectors of its pods.

        Returns whether the selectors differ from those before.
        """
        self._profiles[name] = profile
        if self._subjects.get(name) is profile.subjects:
            return False
        self._subjects[name] = profile.subjects
        for denial in self._denials.get(name, ()):
            self._write_rule(denial)
        return True

    def forget(self, name: ProfileName) -> None:
        """Forgets a profile that has no chains any more."""
        self._profiles.pop(name, None)
        self._subjects.pop(name, None)
        self._denials.pop(name, None)

    def settle(self) -> None:
        """Reports that the kernel gets the contents as they are now: names of removed chains are free again."""
        self._reserved = set(self._known_names)

    def table(self, name: str) -> PortTable:
        """The table of a chain."""
        return self._meanings[name].table

    def uses(self, name: str) -> int:
        """How many uses a chain has."""
        return self._uses[name]

    def take(self, table: PortTable, profile: ProfileName) -> str:
        """The chain of a table; it exists until each taken use is dropped."""
        counted = Counter(entry.ruling for entry in table.entries)
        counted[table.other] += 1
        rulings = counted.keys()
        meaning = _Meaning(table, profile, rulings, _digest(table.entries))
        name = self._names.get(meaning)
        if name is None:
            name = self._new_name(table, profile)
            self._entries[name] = counted
            self._rules[name] = {ruling: self._take_rule(rule_identity(profile, ruling)) for ruling in rulings}
            self._mean(name, meaning)
            self._writer.add_table(name, table, profile)
        self._uses[name] += 1
        return name

    def _new_name(self, table: PortTable, profile: ProfileName) -> str:
        known = self._known.pop(self._writer.signature(table, profile), "") if self._known else ""
        if known and known not in self._meanings:
            return known
        names = (self._writer.table_name(table, profile, attempt) for attempt in count())
        return next(name for name in names if name not in self._meanings and name not in self._reserved)

    def change(self, name: str, table: PortTable, profile: ProfileName) -> bool:
        """Changes the table of a chain in place; returns False, with nothing changed, if that is not possible."""
        before = self._meanings[name]
        change, rules = change_of(before.table, table), self._rules[name]
        counted, steps = self._entries[name], _steps(change)
        gone = {ruling for ruling, step in steps.items() if step < 0 and counted[ruling] == -step}
        new = [ruling for ruling, step in steps.items() if step > 0 and ruling not in counted]
        rulings = (ruling for group in (new, counted) for ruling in group if ruling not in gone)
        digest = before.digest ^ _digest(change.removed) ^ _digest(change.added)
        meaning = _Meaning(table, profile, rulings, digest)
        if meaning in self._names:
            return False
        added = {ruling: self._take_rule(rule_identity(profile, ruling)) for ruling in new}
        if not self._writer.change_table(name, change, profile):
            self._drop_rules(added.values())
            return False
        for ruling, step in steps.items():
            counted[ruling] += step
        for ruling in gone:
            del counted[ruling]
        rules.update(added)
        self._drop_rules([rules.pop(ruling) for ruling in gone])
        del self._names[before]
        self._mean(name, meaning)
        return True

    def _mean(self, name: str, meaning: _Meaning) -> None:
        self._meanings[name] = meaning
        self._names[meaning] = name

    def _take_rule(self, identity: RuleIdentity) -> str:
        name = self._writer.rule_name(identity)
        if not self._uses[name]:
            self._identities[name] = identity
            if identity.profile is not None:
                self._denials.setdefault(identity.profile, set()).add(name)
            self._gone.pop(name, None)
            self._write_rule(name)
        self._uses[name] += 1
        return name

    def _write_rule(self, name: str) -> None:
        """Writes the chain of a rule, if it is new or has another text."""
        identity = self._identities[name]
        profile = self._profiles.get(identity.profile) if identity.profile is not None else None
        text = identity.text(profile.subjects if profile is not None else ())
        if self._texts.get(name) != text:
            self._texts[name] = text
            self._writer.add_rule(name, identity, text)

    def drop(self, name: str) -> None:
        """Drops one use of a table's chain; with the last use, the chain is removed."""
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]
            del self._names[self._meanings.pop(name)]
            self._reserved.add(name)
            self._writer.remove_table(name)
            del self._entries[name]
            self._drop_rules(self._rules.pop(name).values())

    def _drop_rules(self, names: Iterable[str]) -> None:
        for name in names:
            self._uses[name] -= 1
            if self._uses[name]:
                continue
            del self._uses[name]
            identity = self._identities.pop(name)
            del self._texts[name]
            if identity.profile is not None:
                self._denials[identity.profile].discard(name)
            self._gone[name] = self._hit(identity)
            if len(self._gone) > _KEPT_HITS:
                del self._gone[next(iter(self._gone))]
            self._writer.remove_rule(name)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule of a chain that exists or was removed lately; None: the chain is unknown."""
        identity = self._identities.get(name)
        return self._hit(identity) if identity is not None else self._gone.get(name)

    def _hit(self, identity: RuleIdentity) -> RuleHit:
        profile = self._profiles.get(identity.profile) if identity.profile is not None else None
        return identity.hit(profile.policies if profile is not None else None)

    def denials(self, profiles: Iterable[ProfileName | None]) -> set[str]:
        """The chains of the denials of some profiles, whose policies :meth:`meaning` names."""
        known = (profile for profile in profiles if profile is not None)
        return {name for profile in known for name in self._denials.get(profile, ())}


def _digest(entries: Entries) -> int:
    """The exclusive or of the hashes of different entries."""
    return reduce(xor, map(hash, entries), 0)


def _steps(change: TableChange) -> dict[Ruling, int]:
    """By ruling: how many entries more or fewer a table has; protocols without ports count as one entry."""
    steps: dict[Ruling, int] = {}
    for entries, step in ((change.added, 1), (change.removed, -1)):
        for entry in entries:
            steps[entry.ruling] = steps.get(entry.ruling, 0) + step
    if change.before.other != change.after.other:
        steps[change.after.other] = steps.get(change.after.other, 0) + 1
        steps[change.before.other] = steps.get(change.before.other, 0) - 1
    return steps


class GroupChange(NamedTuple):
    """The changes in the groups of a profile."""

    groups: Iterable[HostGroup] = ()
    """Groups with another table, new groups, and groups that are empty or gone now."""
    moved: Iterable[str] = ()
    """Addresses that moved from one group to another."""
    ranges: Mapping[int, Sequence[Range]] = {}
    """By family (4, 6): the regions in which ranges came, went or have other rules."""
    left_groups: Iterable[HostGroup] = ()
    """Groups of the surroundings that some addresses left for other groups."""


class ChainMoves(NamedTuple):
    """What is led to other chains by a change of a profile."""

    addresses: set[str]
    """The addresses whose chain may be another one now."""
    ranges: bool
    """Whether ranges or surroundings have another chain."""
    everywhere: bool
    """Whether ranges outside the changed regions have another chain too."""


class GroupChains:
    """The chains of the tables of one profile, by the groups of its peers and of its surroundings."""

    def __init__(self, tables: TableChains, name: ProfileName, profile: Profile, family: str) -> None:
        """``name`` is the name of the profile."""
        self._tables = tables
        self._name = name
        self._family = family
        self._version = 6 if family == "ip6" else 4
        self._blocks = profile.blocks[self._version]
        self._chains: dict[HostGroup, str] = {}

    def chain(self, group: HostGroup | None) -> str | None:
        """The chain of a group; None: the addresses of the group are not led to a chain of their own."""
        return self._chains.get(group) if group is not None else None

    def take(self, group: HostGroup) -> str:
        """The chain of a group of the surroundings."""
        if group not in self._chains:
            self._chains[group] = self._tables.take(group.table, self._name)
        return self._chains[group]

    def ranges(self, ranges: Sequence[tuple[int, int, HostGroup]]) -> list[tuple[int, int, str]]:
        """The ranges of addresses of groups of the surroundings, with their chains."""
        chains = self._chains
        for group in [group for _, _, group in ranges if group not in chains]:
            self.take(group)
        return [(first, last, chains[group]) for first, last, group in ranges]

    def update(
        self,
        groups: Iterable[HostGroup],
        left_chains: Collection[str] = (),
        *,
        around: bool = False,
        in_place: bool = True,
    ) -> set[HostGroup]:
        """Takes over changed groups; returns those that have another chain now, or none.

        ``left_chains`` are the chains that addresses are led to now and not after this change; ``around``: so are the
        chains of the surroundings. Addresses that get their first group leave these too. ``in_place`` is False if a pod
        leaves the profile in the same change.
        """
        desired = {group: self._desired_table(group) for group in groups}
        changed = {group: table for group, table in desired.items() if table != self._table(group)}
        around = around or any(group not in self._chains for group in changed)
        in_place_groups = self._change_in_place(changed, left_chains, around=around) if in_place else set()
        moved = {group: table for group, table in changed.items() if group not in in_place_groups}
        before = [self._chains[group] for group in moved if group in self._chains]
        for group, table in moved.items():
            if table is None:
                del self._chains[group]
            else:
                self._chains[group] = self._tables.take(table, self._name)
        for chain in before:
            self._tables.drop(chain)
        return set(moved)

    def follow(
        self, profile: Profile, change: GroupChange, led: Callable[[str], str | None], *, in_place: bool
    ) -> ChainMoves:
        """Takes over changed groups and moved addresses; ``led`` returns the chain that an address is led to now."""
        addresses = {address for address in change.moved if (":" in address) == (self._family == "ip6")}
        now = [(led(address), self.chain(profile.peers.group(address))) for address in addresses]
        left_chains = {chain for chain, after in now if chain is not None and chain != after}
        left_chains.update(self._chains[group] for group in change.left_groups if group in self._chains)
        around = any(chain is None for chain, _ in now)
        moved = self.update(change.groups, left_chains, around=around, in_place=in_place)
        led_elsewhere = addresses.union(*(group.addresses[self._family] for group in moved))
        surroundings = [group for group in moved if group.key.surroundings]
        everywhere = any(group.key.rules and group in self._chains for group in surroundings)
        return ChainMoves(led_elsewhere, self._version in change.ranges or bool(surroundings), everywhere)

    def _surrounding_chains(self) -> set[str]:
        """The chains to which addresses without a chain of their own are led."""
        return {chain for group, chain in self._chains.items() if group.key.surroundings}

    def _desired_table(self, group: HostGroup) -> PortTable | None:
        """The table that a group needs in this family; the surroundings have one only where they were taken."""
        key = group.key
        if key.surroundings:
            needed = group in self._chains and (not key.rules or bool(self._blocks.uses(key.rules)))
        else:
            needed = group.shown and bool(group.addresses[self._family])
        return group.table if needed else None

    def _table(self, group: HostGroup) -> PortTable | None:
        chain = self._chains.get(group)
        return self._tables.table(chain) if chain is not None else None

    def _change_in_place(
        self, groups: Mapping[HostGroup, PortTable | None], left_chains: Collection[str], *, around: bool
    ) -> set[HostGroup]:
        """Changes the tables of chains to which only groups with the same new table lead; returns these groups.

        ``groups`` have the tables that they need.
        """
        done: set[HostGroup] = set()
        users: dict[str, list[HostGroup]] = {}
        for group in groups:
            if group in self._chains:
                users.setdefault(self._chains[group], []).append(group)
        if users and around:
            left_chains = {*left_chains, *self._surrounding_chains()}
        for chain, own in users.items():
            table = groups[own[0]]
            if table is None or chain in left_chains or self._tables.uses(chain) != len(own):
                continue
            if all(groups[group] == table for group in own) and self._tables.change(chain, table, self._name):
                done.update(own)
        return done

    def drop(self) -> None:
        """Drops all chains."""
        for chain in self._chains.values():
            self._tables.drop(chain)
        self._chains.clear()

    def items(self) -> Iterable[tuple[HostGroup, str]]:
        """The groups with their chains."""
        return self._chains.items()
