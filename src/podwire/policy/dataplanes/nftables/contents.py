"""The contents of the table of one family; an update costs only as much as the change (pure).

A change is the difference of two partial tables: the chains and sets that it touches, before and after. The exact
addresses of a profile, and the single ports of its tables, change one by one. With other ranges, or another table for
all other peers, a profile gets another chain with another map of ranges. It keeps its map of addresses if none goes.
"""

from collections.abc import Collection, Iterable, Mapping

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.policy.compile import PodProfiles, PolicyDelta
from podwire.policy.contents import change_of, profiles_left
from podwire.policy.dataplanes.nftables.layout import (
    TABLE,
    Chains,
    TableLayout,
    hosts_names,
    hosts_of,
    leading_to,
    node_name,
    profile_names,
)
from podwire.policy.dataplanes.nftables.portchains import PortChainWriter, known_tables
from podwire.policy.profile import Profile, ProfileKey
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
        self._known = {chain.name: hosts_of(chain) for chain in have.chains} if have is not None else {}
        self._hosts: dict[ProfileKey, str] = {}
        """The map of exact addresses of each profile."""
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
            self._change(profiles[key], change_of(delta, key, self.layout.family), in_place=key not in left)

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._end(self._names.pop(key))
                self._keyed.remove_set(self._hosts.pop(key))
                self._groups.pop(key).drop()
                self._tables.forget(key)

    def _end(self, name: str) -> None:
        for chain in {name, node_name(name)} & self._keyed.chains.keys():
            self._keyed.remove_chain(chain)
        self._keyed.remove_set(self.layout.ranges_map(name).name)

    def commit(self) -> Transaction:
        """The transaction for all changes since the last call."""
        self._tables.settle()
        return diff(*map(self._partial, self._keyed.changes()))

    def _partial(self, extract: ContentsExtract[Chain, Set]) -> Table:
        chains, sets = tuple(extract.chains.values()), tuple(extract.sets.values())
        return Table(family=self.layout.family, name=TABLE, chains=chains, sets=sets)

    def _write(self, profile: Profile) -> None:
        """Writes a new profile."""
        key = profile.key
        groups = self._groups[key] = GroupChains(self._tables, profile, self.layout.family)
        self._tables.know(profile)
        groups.update(profile.groups())
        first, second = profile_names(key)
        name = second if second in self._known else first
        self._add_hosts(key, self._known.get(name) or hosts_names(key)[0])
        self._add(name, profile)

    def _add_hosts(self, key: ProfileKey, name: str) -> None:
        """Adds the map of a profile's exact addresses."""
        groups, family = self._groups[key], self.layout.family
        pairs = ((group, leading_to(chain)) for group, chain in groups.items())
        elements = (
            (self.layout.key(address), element) for group, element in pairs for address in group.addresses[family]
        )
        self._keyed.add_set(self.layout.hosts_map(name).with_elements(elements))
        self._hosts[key] = name

    def _add(self, name: str, profile: Profile) -> None:
        """Adds the chain of a profile, and its map of ranges."""
        key, layout = profile.key, self.layout
        groups, by_range = self._groups[key], layout.ranges_map(name)
        default = groups.take(profile.surroundings())
        ranges = profile.ranges(6 if layout.family == "ip6" else 4)
        elements = dict(layout.ranged(by_range, first, last, groups.take(group)) for first, last, group in ranges)
        self._keyed.add_set(by_range.with_elements(elements.items()))
        self._put(layout.profile_chain(name, key, self._hosts[key], default))
        if key.to_own_node:
            self._put(layout.node_chain(name, key))
        self._names[key] = name

    def _move(self, profile: Profile) -> None:
        """Gives a profile another chain with its ranges as they are now, and moves its pods there."""
        key = profile.key
        before, names = self._names[key], profile_names(key)
        pods = [(pod, *placed) for pod, placed in self._placed.items() if key in (placed[1].ingress, placed[1].egress)]
        for pod, _, _ in pods:
            self._keyed.release(pod, self._of_device(*self._placed.pop(pod)))
        self._add(names[1] if before == names[0] else names[0], profile)
        for pod, device, profiles in pods:
            self.place(pod, device, profiles)
        self._end(before)

    def _change(self, profile: Profile, change: GroupChange, *, in_place: bool) -> None:
        """Takes over changed groups of a profile, addresses that moved from one group to another, and ranges."""
        groups, hosts = self._groups[profile.key], self._hosts[profile.key]
        have = self._keyed.elements[hosts]

        def led(address: str) -> str | None:
            element = have.get(self.layout.key(address))
            return element.verdict.chain if element is not None and element.verdict is not None else None

        self._tables.know(profile)
        addresses, moved = groups.follow(profile, change, led, in_place=in_place)
        elements: dict[str | None, Element | None] = {None: None}
        changes: dict[bytes, Element | None] = {}
        for address in addresses:
            chain = groups.chain(profile.group(address))
            if chain is not None and chain not in elements:
                elements[chain] = leading_to(chain)
            changes[self.layout.key(address)] = elements[chain]
        moves = moved or change.ranges
        anew = moves and any(element is None and key in have for key, element in changes.items())
        if anew:
            first, second = hosts_names(profile.key)
            self._add_hosts(profile.key, second if hosts == first else first)
        else:
            self._keyed.put_elements(hosts, changes)
        if moves:
            self._move(profile)
        if anew:
            self._keyed.remove_set(hosts)

    def _to_own_node(self, key: ProfileKey | None) -> str:
        """The chain for packets from pods to their own node; empty: no policy applies to them."""
        return node_name(self._names[key]) if key is not None and key.to_own_node else ""
