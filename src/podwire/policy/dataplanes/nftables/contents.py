"""What the table of one family holds, kept current at the cost of the change (pure).

Every piece has a name made of what it means, so a piece that two profiles need is there once, and a piece that is there
is right. A change is told as the difference of two partial tables: of the pieces that it touches before and after.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from podwire.dataplane.contents import ContentsExtract, KeyedContents
from podwire.policy.compile import Delta, PodProfiles
from podwire.policy.dataplanes.nftables.layout import (
    TABLE,
    Chains,
    TableLayout,
    leading_to,
    node_name,
    ports_name,
    profile_name,
    rule_name,
)
from podwire.policy.ports import PortTable
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.verdicts import RuleHit, denying_policies
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_diff import Transaction, diff

Elements = dict[str, dict[bytes, Element]]

_GONE = 1024
"""How many chains of rules are remembered that went: what they counted and logged is still asked for."""


class Contents:
    """One family's table."""

    def __init__(self, layout: TableLayout) -> None:
        self.layout = layout
        self._keyed: KeyedContents[Chain, Set, bytes, Element] = KeyedContents()
        for chain in layout.chains():
            self._put(chain)
        for declared in layout.sets():
            self._keyed.add_set(declared)
        self._keyed.changes()  # what is always there is no change
        self._uses: Counter[str] = Counter()
        self._needs: dict[str, tuple[str, ...]] = {}
        self._names: dict[ProfileKey, str] = {}
        self._hosts: dict[str, dict[str, str]] = {}
        self._placed: dict[str, tuple[str, PodProfiles]] = {}
        self._hits: dict[str, RuleHit] = {}
        self._gone: dict[str, RuleHit] = {}

    def table(self) -> Table:
        """All of it."""
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
        """A pod has a device and profiles; None: it is gone."""
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
        """The node, or the cluster, has other ranges and addresses; the rules are the same."""
        self.layout = layout
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: Delta) -> None:
        """Takes over what became of profiles; the pods that have them are placed by :meth:`place`."""
        for key in delta.made:
            self._write(profiles[key])
        for key, addresses in delta.hosts.items():
            self._lead(self._names[key], profiles[key], addresses)

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Takes away profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._end(self._names.pop(key))

    def _end(self, name: str) -> None:
        for chain, times in Counter(self._hosts.pop(name).values()).items():
            self._drop(chain, times)
        for chain in {name, node_name(name)}:
            self._remove(chain)
        for declared in self.layout.profile_sets(name):
            self._keyed.remove_set(declared.name)

    def commit(self) -> Transaction:
        """What has to be done for all that was said since the last call."""
        return diff(*map(self._partial, self._keyed.changes()))

    def _partial(self, part: ContentsExtract[Chain, Set]) -> Table:
        chains, sets = tuple(part.chains.values()), tuple(part.sets.values())
        return Table(family=self.layout.family, name=TABLE, chains=chains, sets=sets)

    def _write(self, profile: Profile) -> None:
        """A whole profile: in place where its chain is what it was, else beside it, and then its pods go there."""
        key, before = profile.key, self._names.get(profile.key)
        default = self._take(profile.default, key)
        family = 6 if self.layout.family == "ip6" else 4
        ranges = tuple((first, last, self._take(ports, key)) for first, last, ports in profile.ranges(family))
        taken = (default, *(chain for _, _, chain in ranges))
        name = profile_name(key, default, ranges)
        if name == before:
            self._lead(name, profile, (*profile.hosts, *(self._hosts[name].keys() - profile.hosts.keys())))
            for chain in taken:
                self._drop(chain)
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
        self._needs[name] = taken
        if _node_chain_needed(key):
            self._put(self.layout.node_chain(name, key))
        self._lead(name, profile, profile.hosts)

    def _lead(self, name: str, profile: Profile, addresses: Iterable[str]) -> None:
        """Has exact addresses lead to the chains of their tables; peers share those, so few names are made."""
        ours = ":" if self.layout.family == "ip6" else "."
        declared, _ = self.layout.profile_sets(name)
        have = self._hosts[name]
        led = _PeerChains(lambda table: self._take(table, profile.key))
        changed: dict[bytes, Element | None] = {}
        for address in addresses:
            if ours not in address:
                continue
            before = have.get(address)
            chain, element = led.by(profile.hosts.get(address))
            if chain == before:
                continue
            if chain is None:
                del have[address]
            else:
                have[address] = chain
            led.moved(before, chain)
            changed[self.layout.key(address)] = element
        self._keyed.put_elements(declared.name, changed)
        self._settle(led)

    def _settle(self, led: "_PeerChains") -> None:
        """Counts who leads where now."""
        self._uses.update({chain: step for chain, step in led.steps.items() if step > 0})
        for chain, step in led.steps.items():
            if step < 0:
                self._drop(chain, -step)
        for chain in led.taken:
            self._drop(chain)

    def _to_own_node(self, key: ProfileKey | None) -> str:
        """The chain for what pods send to their own node; empty: no policy has a say."""
        return node_name(self._names[key]) if key is not None and _node_chain_needed(key) else ""

    def _take(self, table: PortTable, key: ProfileKey) -> str:
        """The chain of a table of ports, which is there as long as it is taken more often than dropped."""
        denying = denying_policies(key)
        name = ports_name(table, denying)
        if not self._uses[name]:
            hit = [denying.hit(ruling) for ruling in table.rulings]
            for each in hit:
                self._rule(each)
            sets = self.layout.ports_sets(name, table, denying)
            for declared in sets:
                self._keyed.add_set(declared)
            needs = tuple(map(rule_name, hit))
            self._put(self.layout.ports_chain(name, table, denying))
            self._needs[name] = (*needs, *(f"@{declared.name}" for declared in sets))
        self._uses[name] += 1
        return name

    def _rule(self, hit: RuleHit) -> None:
        name = rule_name(hit)
        if not self._uses[name]:
            self._put(self.layout.rule_chain(hit))
            self._hits[name] = hit
        self._uses[name] += 1

    def _drop(self, name: str, times: int = 1) -> None:
        """Gives a chain back; with the last user it goes, and gives back what it needs."""
        self._uses[name] -= times
        if self._uses[name]:
            return
        del self._uses[name]
        if name in self._hits:
            self._gone[name] = self._hits.pop(name)
            if len(self._gone) > _GONE:
                del self._gone[next(iter(self._gone))]
        self._keyed.remove_chain(name)
        for need in self._needs.pop(name, ()):
            if need.startswith("@"):
                self._keyed.remove_set(need[1:])
            else:
                self._drop(need)

    def _remove(self, name: str) -> None:
        """Takes a chain of a profile away, if it is there, and gives back what it has taken."""
        if name in self._keyed.chains:
            self._keyed.remove_chain(name)
        for chain in self._needs.pop(name, ()):
            self._drop(chain)

    def meaning(self, name: str) -> RuleHit | None:
        """What the chain of a rule stands for, or stood for lately; None: it is none that is known."""
        return self._hits.get(name) or self._gone.get(name)


class _PeerChains:
    """Where tables lead while many addresses are gone through; each chain is taken once, to be dropped at the end."""

    def __init__(self, take: Callable[[PortTable], str]) -> None:
        self._take = take
        self._known: dict[int, tuple[str | None, Element | None]] = {id(None): (None, None)}
        self.taken: list[str] = []
        self.steps: Counter[str] = Counter()
        """By how many more addresses each chain is used."""

    def by(self, table: PortTable | None) -> tuple[str | None, Element | None]:
        """The chain of a table, and the element that leads there."""
        found = self._known.get(id(table))
        if found is None:
            assert table is not None, "None is known"
            chain = self._take(table)
            self.taken.append(chain)
            found = self._known[id(table)] = (chain, leading_to(chain))
        return found

    def moved(self, before: str | None, after: str | None) -> None:
        """An address leads elsewhere."""
        if before is not None:
            self.steps[before] -= 1
        if after is not None:
            self.steps[after] += 1


def _node_chain_needed(key: ProfileKey) -> bool:
    """Whether a policy speaks of what pods send to their own node."""
    return key.direction == "Egress" and (not key.own_node_egress or bool(key.cluster_policies))
