"""The contents of the table of one family; an update costs only as much as the change (pure).

A change is the difference of two partial tables: the chains and sets that it touches, before and after. A profile's
chain and its ranges never change; its exact addresses, and the single ports of its tables, change one by one.
"""

from collections.abc import Collection, Iterable, Mapping

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.policy.compile import PodProfiles, PolicyDelta
from podwire.policy.contents import profiles_left
from podwire.policy.dataplanes.nftables.layout import (
    TABLE,
    Chains,
    TableLayout,
    leading_to,
    node_name,
    profile_name,
)
from podwire.policy.dataplanes.nftables.portchains import PortChainWriter, known_tables
from podwire.policy.profile import HostGroup, Profile, ProfileKey
from podwire.policy.tablechains import GroupChains, TableChains
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

Elements = dict[str, dict[bytes, Element]]


class Contents:
    """One family's table."""

    def __init__(self, layout: TableLayout, have: Table | None = None) -> None:
        """``have`` is the kernel's table, whose names of chains are used again."""
        self.layout = layout
        self._keyed: KeyedContents[Chain, Set, bytes, Element] = KeyedContents()
        for chain in layout.chains():
            self._put(chain)
        for declared in layout.sets():
            self._keyed.add_set(declared)
        self._keyed.changes()  # the fixed chains and sets are not part of the first change
        self._names: dict[ProfileKey, str] = {}
        self._groups: dict[ProfileKey, GroupChains] = {}
        self._placed: dict[str, tuple[str, PodProfiles]] = {}
        self._writer = PortChainWriter(layout, self._keyed)
        self._tables = TableChains(self._writer, known_tables(have))

    def meaning(self, name: str) -> RuleHit | None:
        """The rule of a chain that exists or was removed lately; None: the chain is unknown."""
        return self._tables.meaning(name)

    def denials(self, keys: Iterable[ProfileKey]) -> set[str]:
        """The chains of the denials of some profiles, whose policies :meth:`meaning` names."""
        return self._tables.denials(keys)

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
        """The transaction that makes the whole table anew, unread."""
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

    def _put(self, chain: Chain) -> None:
        self._keyed.put_chain(chain.name, chain)

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """Sets the device and the profiles of a pod; ``profiles`` None: the pod was deleted."""
        before = self._placed.pop(pod, None)
        if before is not None:
            self._keyed.release(pod, self._of_device(*before))
        if profiles is not None:
            self._placed[pod] = (device, profiles)
            self._keyed.claim(pod, self._of_device(device, profiles))

    def _of_device(self, device: str, profiles: PodProfiles) -> Elements:
        ingress, egress = (self._names[key] if key else "" for key in (profiles.ingress, profiles.egress))
        chains = Chains(ingress=ingress, egress=egress, to_node=self._to_own_node(profiles.egress))
        return self.layout.placed(device, profiles.addresses, chains)

    def move(self, layout: TableLayout) -> None:
        """Takes over changed ranges and addresses of the node or the cluster; the rules stay the same."""
        self.layout = self._writer.layout = layout
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them."""
        for key in delta.made:
            self._write(profiles[key])
        left = profiles_left(self._placed, delta)
        for key in delta.groups.keys() | delta.hosts.keys():
            change = delta.groups.get(key, set()), delta.hosts.get(key, set())
            self._change(profiles[key], change, in_place=key not in left)

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._end(self._names.pop(key))
                self._groups.pop(key).drop()
                self._tables.forget(key)

    def _end(self, name: str) -> None:
        for chain in {name, node_name(name)} & self._keyed.chains.keys():
            self._keyed.remove_chain(chain)
        for declared in self.layout.profile_sets(name):
            self._keyed.remove_set(declared.name)

    def commit(self) -> Transaction:
        """The transaction for all changes since the last call."""
        self._tables.settle()
        return diff(*map(self._partial, self._keyed.changes()))

    def _partial(self, extract: ContentsExtract[Chain, Set]) -> Table:
        chains, sets = tuple(extract.chains.values()), tuple(extract.sets.values())
        return Table(family=self.layout.family, name=TABLE, chains=chains, sets=sets)

    def _write(self, profile: Profile) -> None:
        """Writes a whole profile to new chains, and moves its pods."""
        key, family = profile.key, self.layout.family
        before = (self._names.get(key), self._groups.get(key))
        groups = self._groups[key] = GroupChains(self._tables, key, family)
        self._tables.know(profile)
        default = groups.take(profile.surroundings())
        ranges = tuple(
            (first, last, groups.take(group)) for first, last, group in profile.ranges(6 if family == "ip6" else 4)
        )
        groups.update(profile.groups())
        name = profile_name(key, default, ranges)
        if name == before[0]:
            self._keyed.fill_set(self._filled(name, groups))
        else:
            pods = [
                (pod, *placed) for pod, placed in self._placed.items() if key in (placed[1].ingress, placed[1].egress)
            ]
            for pod, _, _ in pods:
                self._keyed.release(pod, self._of_device(*self._placed.pop(pod)))
            self._add(name, key, ranges, default)
            self._names[key] = name
            for pod, device, profiles in pods:
                self.place(pod, device, profiles)
        if before[1] is not None:
            before[1].drop()
        if before[0] is not None and name != before[0]:
            self._end(before[0])

    def _add(self, name: str, key: ProfileKey, ranges: tuple[tuple[int, int, str], ...], default: str) -> None:
        _, by_range = self.layout.profile_sets(name)
        self._keyed.add_set(self._filled(name, self._groups[key]))
        elements = dict(self.layout.ranged(by_range, first, last, chain) for first, last, chain in ranges)
        self._keyed.add_set(by_range.with_elements(elements.items()))
        self._put(self.layout.profile_chain(name, key, default))
        if key.to_own_node:
            self._put(self.layout.node_chain(name, key))

    def _filled(self, name: str, groups: GroupChains) -> Set:
        """The map of a profile's exact addresses."""
        declared, _ = self.layout.profile_sets(name)
        pairs = ((group, leading_to(chain)) for group, chain in groups.items())
        return declared.with_elements(
            (self.layout.key(address), element)
            for group, element in pairs
            for address in group.addresses[self.layout.family]
        )

    def _change(self, profile: Profile, change: tuple[set[HostGroup], set[str]], *, in_place: bool) -> None:
        """Takes over changed groups of a profile, and addresses that moved from one group to another."""
        groups, declared = self._groups[profile.key], self.layout.profile_sets(self._names[profile.key])[0]
        have = self._keyed.elements[declared.name]

        def led(address: str) -> str | None:
            element = have.get(self.layout.key(address))
            return element.verdict.chain if element is not None and element.verdict is not None else None

        self._tables.know(profile)
        addresses = groups.follow(profile, change, led, in_place=in_place)
        if addresses is None:
            self._write(profile)
            return
        elements: dict[str | None, Element | None] = {None: None}
        changes: dict[bytes, Element | None] = {}
        for address in addresses:
            chain = groups.chain(profile.group(address))
            if chain is not None and chain not in elements:
                elements[chain] = leading_to(chain)
            changes[self.layout.key(address)] = elements[chain]
        self._keyed.put_elements(declared.name, changes)

    def _to_own_node(self, key: ProfileKey | None) -> str:
        """The chain for packets from pods to their own node; empty: no policy applies to them."""
        return node_name(self._names[key]) if key is not None and key.to_own_node else ""
