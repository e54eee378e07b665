"""The contents of the table of one family; an update costs only as much as the change (pure).

A change is the difference of two partial tables: the chains and sets that it touches, before and after. A map of ranges
never changes: other ranges make another map, to which the chain of the profile refers then. Another comment makes
another chain. Exact addresses, and the single ports of tables, change one by one.
"""

from collections.abc import Collection, Iterable, Mapping

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.policy.contents import group_changes, profiles_left
from podwire.policy.dataplanes.nftables.fixedchains import FixedChains
from podwire.policy.dataplanes.nftables.layout import (
    TABLE,
    TableLayout,
    comment_of,
    leading_to,
    node_name,
    profile_name,
)
from podwire.policy.dataplanes.nftables.placements import PodPlacements
from podwire.policy.dataplanes.nftables.portchains import PortChainWriter, known_tables
from podwire.policy.dataplanes.nftables.rangechains import ProfileRanges, RangeChains
from podwire.policy.nodepods import PodProfiles, PolicyDelta
from podwire.policy.ports import Range, merged
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.profilenames import NO_NAMES, KernelNames, ProfileName, ProfileNames
from podwire.policy.tablechains import GroupChains, GroupChange, TableChains
from podwire.policy.verdicts import RuleHit
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_diff import (
    AddElements,
    Operation,
    RestoreElements,
    Transaction,
    diff,
    replacement,
    rewriting,
)


class Contents:
    """One family's table."""

    def __init__(self, layout: TableLayout, have: Table | None = None, known: KernelNames = NO_NAMES) -> None:
        """``have`` is the kernel's table, whose names of chains are used again; ``known`` are those of profiles."""
        self.layout = layout
        self._keyed: KeyedContents[Chain, Set, bytes, Element] = KeyedContents()
        for chain in FixedChains(layout).chains():
            self._keyed.put_chain(chain.name, chain)
        for declared in layout.sets():
            self._keyed.add_set(declared)
        self._keyed.changes()  # the fixed chains and sets are not part of the first change
        self._profiles = ProfileNames(known)
        self._names: dict[ProfileKey, str] = {}
        self._hosts: dict[ProfileKey, str] = {}
        self._ranges: dict[ProfileKey, ProfileRanges] = {}
        self._range_maps: dict[ProfileKey, str] = {}
        self._groups: dict[ProfileKey, GroupChains] = {}
        self._pods = PodPlacements(layout, self._keyed, self._names)
        self._writer = PortChainWriter(layout, self._keyed)
        self._tables = TableChains(self._writer, known_tables(have))
        self._parts = RangeChains(layout, self._keyed)
        self._had_parts = False
        self.end_accepts = True
        """Whether a packet is accepted that falls through the chain of a rule, before and after the last
        :meth:`commit`; where packets jump to a part of the ranges, they return to the chain of the profile."""

    def meaning(self, name: str) -> RuleHit | None:
        """The rule of a chain that exists or was removed lately; None: the chain is unknown."""
        return self._tables.meaning(name)

    def denials(self, keys: Iterable[ProfileKey]) -> set[str]:
        """The chains of the denials of some profiles, whose policies :meth:`meaning` names."""
        return self._tables.denials(map(self._profiles.get, keys))

    def table(self) -> Table:
        """The whole table."""
        return Table(
            family=self.layout.family,
            name=TABLE,
            comment="podwire: NetworkPolicy",
            chains=tuple(self._keyed.chains.values()),
            sets=tuple(self._keyed.filled_sets()),
        )

    def replaced(self) -> Transaction:
        """The transaction that replaces the whole table without reading it."""
        return replacement(self.table())

    def rewritten(
        self, chains: Collection[str], sets: Collection[str], removed: Mapping[str, Mapping[bytes, bytes]]
    ) -> Transaction:
        """The transaction that writes these chains of the table whole, and the elements of these sets, unread.

        ``removed`` are the encoded elements that alone are missing in a set; other sets are written whole.
        """
        own = sorted(self._keyed.chains.keys() & chains)
        operations: list[Operation] = list(rewriting(self._keyed.chains[name] for name in own))
        for name in sorted(self._keyed.sets.keys() & sets):
            declared, elements = self._keyed.sets[name], self._keyed.elements[name]
            if name in removed:
                operations.append(RestoreElements(declared, removed[name]))
            elif elements and not declared.dynamic:
                operations.append(AddElements(declared, dict(elements)))
        return Transaction(self.layout.family, TABLE, tuple(operations))

    def is_tree(self, name: str) -> bool:
        """Whether the kernel keeps a set as a tree of intervals, whose ends are elements of their own."""
        declared = self._keyed.sets.get(name)
        return declared is not None and "interval" in declared.flags and len(declared.key) == 1

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """Sets the device and the profiles of a pod; ``profiles`` None: the pod was deleted."""
        self._pods.place(pod, device, profiles)

    def move(self, layout: TableLayout) -> None:
        """Takes over changed ranges and addresses of the node or the cluster; the rules stay the same."""
        self.layout = self._writer.layout = layout
        self._pods.configure(layout)
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them."""
        for key in delta.new_profiles:
            self._write(profiles[key])
        left_profiles = profiles_left(self._pods.profiles, delta)
        for key, change in group_changes(delta):
            self._change(profiles[key], change, in_place=key not in left_profiles)

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._end(self._names.pop(key))
                self._ranges.pop(key).drop()
                self._keyed.remove_set(self._range_maps.pop(key))
                self._keyed.remove_set(self._hosts.pop(key))
                self._groups.pop(key).drop()
                self._tables.forget(self._profiles.drop(key))

    def _end(self, name: str) -> None:
        for chain in {name, node_name(name)} & self._keyed.chains.keys():
            self._keyed.remove_chain(chain)

    def commit(self) -> Transaction:
        """The transaction for all changes since the last call."""
        self._tables.settle()
        self._profiles.settle()
        has_parts = bool(self._parts)
        self.end_accepts, self._had_parts = not (has_parts or self._had_parts), has_parts
        return diff(*map(self._partial, self._keyed.changes()))

    def _partial(self, extract: ContentsExtract[Chain, Set]) -> Table:
        chains, sets = tuple(extract.chains.values()), tuple(extract.sets.values())
        return Table(family=self.layout.family, name=TABLE, chains=chains, sets=sets)

    def _write(self, profile: Profile) -> None:
        """Writes a whole profile."""
        key, before = profile.key, self._groups.get(profile.key)
        name = self._profiles.take(key)
        groups = self._groups[key] = GroupChains(self._tables, name, profile, self.layout.family)
        self._tables.know(name, profile)
        for group in (profile.peers.surroundings(), *(group for _, _, group in profile.peers.ranges(self._version))):
            groups.take(group)
        groups.update(profile.peers.groups())
        hosts = self._filled(name, groups)
        if key in self._hosts:
            self._keyed.fill_set(hosts)
        else:
            self._hosts[key] = hosts.name
            self._keyed.add_set(hosts)
        self._arrange(profile)
        if before is not None:
            before.drop()

    def _arrange(self, profile: Profile, regions: Iterable[Range] | None = None) -> None:
        """Writes the ranges of a profile and what applies elsewhere.

        ``regions``: the ranges are the same outside these addresses; None: all may be others.
        """
        key, groups, own = profile.key, self._groups[profile.key], self._profiles[profile.key]
        default = groups.take(profile.peers.surroundings())
        ranges = self._ranges.get(key)
        if ranges is None:
            ranges = self._ranges[key] = ProfileRanges(self._parts, own)
        if regions is None:
            ranges.fill(groups.ranges(profile.peers.ranges(self._version)))
        else:
            for region in regions:
                ranges.replace(*region, groups.ranges(profile.peers.ranges(self._version, region)))
        declared, map_before = self.layout.ranges(own, ranges.entries), self._range_maps.get(key)
        if declared.name != map_before:
            self._keyed.add_set(declared)
            self._range_maps[key] = declared.name
        self._lead(profile, default, declared.name)
        if map_before is not None and map_before != declared.name:
            self._keyed.remove_set(map_before)

    def _lead(self, profile: Profile, default: str, ranges: str) -> None:
        """Writes the chain of a profile; if its comment is another one, the pods move to another chain."""
        key, own, comment = profile.key, self._profiles[profile.key], comment_of(profile.subjects)
        name, before = profile_name(own, comment), self._names.get(key)
        self._keyed.put_chain(name, self.layout.profile_chain(name, own, ranges, default, comment))
        if name == before:
            return
        if key.to_own_node:
            self._keyed.put_chain(node_name(name), self.layout.node_chain(name, comment))
        self._names[key] = name
        self._pods.lead(key)
        if before is not None:
            self._end(before)

    @property
    def _version(self) -> int:
        return 6 if self.layout.family == "ip6" else 4

    def _filled(self, name: ProfileName, groups: GroupChains) -> Set:
        """The map of a profile's exact addresses."""
        pairs = ((group, leading_to(chain)) for group, chain in groups.items())
        return self.layout.hosts(name).with_elements(
            (self.layout.key(address), element)
            for group, element in pairs
            for address in group.addresses[self.layout.family]
        )

    def _change(self, profile: Profile, change: GroupChange, *, in_place: bool) -> None:
        """Takes over changed groups of a profile, and addresses that moved from one group to another."""
        groups, hosts = self._groups[profile.key], self._hosts[profile.key]
        have = self._keyed.elements[hosts]

        def chain_of_address(address: str) -> str | None:
            element = have.get(self.layout.key(address))
            return element.verdict.chain if element is not None and element.verdict is not None else None

        other_pods = self._tables.know(self._profiles[profile.key], profile)
        moves = groups.follow(profile, change, chain_of_address, in_place=in_place)
        comment = self._keyed.chains[self._names[profile.key]].comment
        if moves.ranges or (other_pods and comment_of(profile.subjects) != comment):
            self._arrange(profile, None if moves.everywhere else merged(change.ranges.get(self._version, ())))
        elements: dict[str | None, Element | None] = {None: None}
        changes: dict[bytes, Element | None] = {}
        for address in moves.addresses:
            chain = groups.chain(profile.peers.group(address))
            if chain is not None and chain not in elements:
                elements[chain] = leading_to(chain)
            changes[self.layout.key(address)] = elements[chain]
        self._keyed.put_elements(hosts, changes)
