"""The contents of the table of one family; an update costs only as much as the change (pure).

The name of every chain is a hash of its meaning: a chain that two profiles need exists once, and a chain that exists
has the right rules. A change is the difference of two partial tables: the chains and sets that it touches, before and
after.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.policy.compile import PodProfiles, PolicyDelta
from podwire.policy.dataplanes.nftables.layout import (
    TABLE,
    Chains,
    TableLayout,
    node_name,
    profile_name,
)
from podwire.policy.dataplanes.nftables.portchains import PeerChains, PortTableChains
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.verdicts import RuleHit
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_diff import Transaction, diff

Elements = dict[str, dict[bytes, Element]]


class Contents:
    """One family's table."""

    def __init__(self, layout: TableLayout) -> None:
        self.layout = layout
        self._keyed: KeyedContents[Chain, Set, bytes, Element] = KeyedContents()
        for chain in layout.chains():
            self._put(chain)
        for declared in layout.sets():
            self._keyed.add_set(declared)
        self._keyed.changes()  # the fixed chains and sets are not part of the first change
        self._taken: dict[str, tuple[str, ...]] = {}
        self._names: dict[ProfileKey, str] = {}
        self._hosts: dict[str, dict[str, str]] = {}
        self._placed: dict[str, tuple[str, PodProfiles]] = {}
        self._ports = PortTableChains(layout, self._keyed)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule of a chain that exists or was removed lately; None: the chain is unknown."""
        return self._ports.meaning(name)

    def table(self) -> Table:
        """The whole table."""
        return Table(
            family=self.layout.family,
            name=TABLE,
            comment="podwire: NetworkPolicy",
            chains=tuple(self._keyed.chains.values()),
            sets=tuple(self._keyed.filled_sets()),
        )

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
        self.layout = self._ports.layout = layout
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them."""
        for key in delta.made:
            self._write(profiles[key])
        for key, addresses in delta.hosts.items():
            self._map_hosts(self._names[key], profiles[key], addresses)

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._end(self._names.pop(key))

    def _end(self, name: str) -> None:
        for chain, times in Counter(self._hosts.pop(name).values()).items():
            self._ports.drop(chain, times)
        for chain in {name, node_name(name)}:
            self._remove(chain)
        for declared in self.layout.profile_sets(name):
            self._keyed.remove_set(declared.name)

    def commit(self) -> Transaction:
        """The transaction for all changes since the last call."""
        return diff(*map(self._partial, self._keyed.changes()))

    def _partial(self, extract: ContentsExtract[Chain, Set]) -> Table:
        chains, sets = tuple(extract.chains.values()), tuple(extract.sets.values())
        return Table(family=self.layout.family, name=TABLE, chains=chains, sets=sets)

    def _write(self, profile: Profile) -> None:
        """Writes a whole profile: in place if its chain stays the same; else to a new chain, and moves its pods."""
        key, before = profile.key, self._names.get(profile.key)
        default = self._ports.take(profile.default, key)
        family = 6 if self.layout.family == "ip6" else 4
        ranges = tuple((first, last, self._ports.take(ports, key)) for first, last, ports in profile.ranges(family))
        taken = (default, *(chain for _, _, chain in ranges))
        name = profile_name(key, default, ranges)
        if name == before:
            self._map_hosts(name, profile, (*profile.hosts, *(self._hosts[name].keys() - profile.hosts.keys())))
            for chain in taken:
                self._ports.drop(chain)
            return
        pods = [(pod, *placed) for pod, placed in self._placed.items() if key in (placed[1].ingress, placed[1].egress)]
        for pod, _, _ in pods:
            self._keyed.release(pod, self._of_device(*self._placed.pop(pod)))
        self._add(name, profile, ranges, taken)
        self._names[key] = name
        for pod, device, profiles in pods:
            self.place(pod, device, profiles)
        if before is not None:
            self._end(before)

    def _add(
        self, name: str, profile: Profile, ranges: tuple[tuple[int, int, str], ...], taken: tuple[str, ...]
    ) -> None:
        key = profile.key
        self._hosts[name] = {}
        by_address, by_range = self.layout.profile_sets(name)
        for declared in (by_address, by_range):
            self._keyed.add_set(declared)
        for first, last, chain in ranges:
            self._keyed.put_element(by_range.name, *self.layout.ranged(by_range, first, last, chain))
        self._put(self.layout.profile_chain(name, key, taken[0]))
        self._taken[name] = taken
        if _node_chain_needed(key):
            self._put(self.layout.node_chain(name, key))
        self._map_hosts(name, profile, profile.hosts)

    def _map_hosts(self, name: str, profile: Profile, addresses: Iterable[str]) -> None:
        """Points exact addresses to the chains of their tables; peers share tables, so few names are computed."""
        ours = ":" if self.layout.family == "ip6" else "."
        declared, _ = self.layout.profile_sets(name)
        have = self._hosts[name]
        peer_chains = PeerChains(lambda table: self._ports.take(table, profile.key))
        changed: dict[bytes, Element | None] = {}
        for address in addresses:
            if ours not in address:
                continue
            before = have.get(address)
            chain, element = peer_chains.chain_of(profile.hosts.get(address))
            if chain == before:
                continue
            if chain is None:
                del have[address]
            else:
                have[address] = chain
            peer_chains.moved(before, chain)
            changed[self.layout.key(address)] = element
        self._keyed.put_elements(declared.name, changed)
        self._ports.settle(peer_chains)

    def _to_own_node(self, key: ProfileKey | None) -> str:
        """The chain for packets from pods to their own node; empty: no policy applies to them."""
        return node_name(self._names[key]) if key is not None and _node_chain_needed(key) else ""

    def _remove(self, name: str) -> None:
        """Removes a chain of a profile, if it exists, and drops its uses of other chains."""
        if name in self._keyed.chains:
            self._keyed.remove_chain(name)
        for chain in self._taken.pop(name, ()):
            self._ports.drop(chain)


def _node_chain_needed(key: ProfileKey) -> bool:
    """Whether policies apply to packets from pods to their own node."""
    return key.direction == "Egress" and (not key.own_node_egress or bool(key.cluster_policies))
