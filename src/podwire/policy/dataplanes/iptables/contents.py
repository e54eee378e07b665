"""The chains and sets of one family; an update costs only as much as the change (pure).

Marks of packets select the chains of profiles and tables by number (:mod:`.numbers`). A change is the difference
between the chains and sets that it touches, before and after. A profile's chain and its networks never change; its
exact addresses change one by one, and the chains of a table at once.
"""

from collections.abc import Iterable, Mapping

from podwire.dataplane.contents import KeyedContents
from podwire.policy.contents import group_changes, profiles_left
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.cidrs import networks
from podwire.policy.dataplanes.iptables.fixedchains import FixedChains
from podwire.policy.dataplanes.iptables.layout import FIRST, PER_SET, ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers, branches, known_numbers
from podwire.policy.dataplanes.iptables.podelements import PodElements
from podwire.policy.dataplanes.iptables.portchains import NumberedChainWriter, known_tables
from podwire.policy.dataplanes.iptables.profilechains import ProfileChains
from podwire.policy.dataplanes.iptables.steps import FamilyContents, Steps, steps
from podwire.policy.nodepods import PodProfiles, PolicyDelta
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.profilenames import NO_NAMES, KernelNames, ProfileNames
from podwire.policy.tablechains import GroupChains, GroupChange, TableChains
from podwire.policy.verdicts import RuleHit, subjects_text
from podwire.state.ipset import IpSet, IpSetElement
from podwire.state.iptables import Rules, Ruleset
from podwire.state.iptables_diff import Saved


class Contents:
    """One family; ``chains`` and ``sets`` are the kernel's current ones: chain names keep their numbers from there."""

    def __init__(
        self,
        layout: ChainLayout,
        chains: Mapping[str, Rules],
        sets: Mapping[str, IpSet],
        known: KernelNames = NO_NAMES,
    ) -> None:
        """``known`` are the names of profiles in the kernel."""
        self.layout = layout
        marks = layout.marks
        self._numbers = {
            names.OUT: Numbers(FIRST, marks.last, known_numbers(chains, names.OUT, f"{names.OUT}-", marks)),
            names.IN: Numbers(FIRST, marks.last, known_numbers(chains, names.IN, f"{names.IN}-", marks)),
            names.TABLES: Numbers(1, marks.last, known_numbers(chains, names.TABLES, names.PORTS, marks)),
        }
        self._keyed: KeyedContents[Rules, IpSet, str, IpSetElement] = KeyedContents()
        self._profiles = ProfileNames(known)
        self._names: dict[ProfileKey, str] = {}
        self._elements = PodElements(layout, self._keyed, self._numbers, self._names, sets)
        self._groups: dict[ProfileKey, GroupChains] = {}
        self._placed: dict[str, tuple[str, PodProfiles]] = {}
        self._writer = NumberedChainWriter(layout, self._keyed, self._numbers[names.TABLES])
        self._chains = ProfileChains(layout, self._keyed, self._writer, self._numbers)
        self._tables = TableChains(self._writer, known_tables(chains))
        devices = (layout.device_set(number * PER_SET) for number in range(self._elements.device_sets))
        for declared in (*layout.sets(), *devices):
            self._keyed.add_set(declared)
        self._generated: dict[str, Rules] = {}

    # What the kernel should hold

    def rules(self) -> FamilyContents:
        """All chains, sets and jumps of the family."""
        chains = {
            **self._keyed.chains,
            **_generated_chains(self.layout, self._elements.device_sets, self._numbers, leading=False),
        }
        return FamilyContents(
            chains, {ipset.name: ipset for ipset in self._keyed.filled_sets()}, FixedChains(self.layout).jumps()
        )

    def resized(self, sizes: Mapping[str, int]) -> bool:
        """Whether a set is missing, or has another number of elements than desired."""
        return any(sizes.get(name) != len(elements) for name, elements in self._keyed.elements.items())

    def differs(self, saved: Saved, sizes: Mapping[str, int]) -> bool:
        """Whether the rules differ from the desired ones, or a set has a different number of elements."""
        if self.resized(sizes):
            return True
        rules = self.rules()
        return bool(steps(saved, {}, FamilyContents(rules.chains, {}, rules.jumps), {}))

    def desired(self) -> tuple[Ruleset | IpSet, ...]:
        """The rules and sets of the family, as values with a text form."""
        rules = self.rules()
        ruleset = Ruleset(family=self.layout.family, table=names.TABLE, chains=rules.chains, jumps=rules.jumps)
        return ruleset, *(rules.sets[name] for name in sorted(rules.sets))

    # Updates

    def move(self, layout: ChainLayout) -> None:
        """Takes over changed ranges and addresses of the node or the cluster; the rules stay the same."""
        self.layout = self._writer.layout = self._elements.layout = self._chains.layout = layout
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them.

        Raises: KernelError when the packet mark has too few numbers for all profiles and tables.
        """
        for key in delta.new_profiles:
            self._write(profiles[key])
        left_profiles = profiles_left(self._placed, delta)
        for key, change in group_changes(delta):
            self._change(profiles[key], change, in_place=key not in left_profiles)

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """Sets the device and the profiles of a pod; ``profiles`` None: the pod was deleted."""
        before = self._placed.pop(pod, None)
        if before is not None:
            self._elements.release(pod, *before)
        if profiles is not None:
            self._placed[pod] = (device, profiles)
            self._elements.claim(pod, device, profiles)

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._chains.remove(self._names.pop(key))
                self._groups.pop(key).drop()
                self._tables.forget(self._profiles.drop(key))

    # Profiles

    def _write(self, profile: Profile) -> None:
        """Writes a whole profile: in place if its chain stays the same; else to a new chain, and moves its pods."""
        key, family = profile.key, self.layout.family
        before, groups_before = self._names.get(key), self._groups.get(key)
        name = self._profiles.take(key)
        groups = self._groups[key] = GroupChains(self._tables, name, profile, family)
        self._tables.know(name, profile)
        nets, rest = networks(profile, 6 if family == "ip6" else 4)
        default = groups.take(rest)
        ranges = {network: groups.take(group) for network, group in sorted(nets.items())}
        groups.update(profile.peers.groups())
        chain = names.profile_chain(name, (default, ranges))
        rules = self.layout.profile(chain, name, default, subjects_text(profile.subjects), ranged=bool(ranges))
        if chain == before:
            self._chains.fill(chain, groups)
            self._chains.comment(chain, rules)
        else:
            self._move(key, chain, rules, ranges)
        if groups_before is not None:
            groups_before.drop()

    def _move(self, key: ProfileKey, chain: str, rules: Rules, ranges: Mapping[str, str]) -> None:
        """Adds the chain of a profile, moves the pods of the profile there, and removes the chain from before."""
        before = self._names.get(key)
        pods = [(pod, *placed) for pod, placed in self._placed.items() if key in (placed[1].ingress, placed[1].egress)]
        for pod, device, profiles in pods:
            self._elements.release(pod, device, profiles)
        self._chains.add(key.direction, chain, rules, (self._groups[key], ranges))
        self._names[key] = chain
        for pod, device, profiles in pods:
            self._elements.claim(pod, device, profiles)
        if before is not None:
            self._chains.remove(before)

    def _change(self, profile: Profile, change: GroupChange, *, in_place: bool) -> None:
        """Takes over changed groups of a profile, and addresses that moved from one group to another."""
        groups, chain = self._groups[profile.key], self._names[profile.key]
        hosts, _ = names.profile_sets(chain, self.layout.family)
        have = self._keyed.elements[hosts]
        chains = {self._writer.element(table): table for _, table in groups.items()} if change.moved else {}

        def chain_of_address(address: str) -> str | None:
            element = have.get(address)
            return chains.get(element) if element is not None else None

        name = self._profiles[profile.key]
        other_pods = self._tables.know(name, profile)
        moves = groups.follow(profile, change, chain_of_address, in_place=in_place)
        if moves.ranges:
            self._write(profile)
            return
        if other_pods:
            self._chains.comment(
                chain, self.layout.commented(self._keyed.chains[chain], subjects_text(profile.subjects))
            )
        elements: dict[str, IpSetElement] = {}
        changes: dict[str, IpSetElement | None] = {}
        for address in moves.addresses:
            table = groups.chain(profile.peers.group(address))
            if table is not None and table not in elements:
                elements[table] = self._writer.element(table)
            changes[address] = elements[table] if table is not None else None
        self._keyed.put_elements(hosts, changes)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule for a chain name or a log prefix, if it exists or was removed lately; None: unknown."""
        return self._tables.meaning(name if name.startswith(names.RULE) else names.CHAIN + name.upper())

    def denials(self, keys: Iterable[ProfileKey]) -> set[str]:
        """The chains of the denials of some profiles, whose policies :meth:`meaning` names."""
        return self._tables.denials(map(self._profiles.get, keys))

    # Steps

    def loaded(self, saved: Saved, have: Mapping[str, IpSet]) -> Steps:
        """The steps from everything that the kernel holds to the desired state."""
        self._keyed.changes()
        return self._plan_steps(saved, have, self.rules())

    def changed(self) -> Steps:
        """The steps for all changes since the last call."""
        before, now = self._keyed.changes()
        generated = _generated_chains(self.layout, self._elements.device_sets, self._numbers, leading=False)
        differing = {name: rules for name, rules in generated.items() if self._generated.get(name) != rules}
        gone = {name: rules for name, rules in self._generated.items() if generated.get(name) != rules}
        want = FamilyContents({**now.chains, **differing}, now.sets)
        return self._plan_steps({names.TABLE: {**before.chains, **gone}}, before.sets, want)

    def _plan_steps(self, saved: Saved, have: Mapping[str, IpSet], want: FamilyContents) -> Steps:
        during = _generated_chains(self.layout, self._elements.device_sets, self._numbers, leading=True)
        final = _generated_chains(self.layout, self._elements.device_sets, self._numbers, leading=False)
        for name in list(during):
            if name in want.chains or during[name] != final.get(name):
                continue
            del during[name]
        result = steps(saved, have, want, during)
        self._tables.settle()
        self._profiles.settle()
        for numbers in (*self._numbers.values(), self._elements.devices):
            numbers.settle()
        self._generated = final
        return result


def _generated_chains(
    layout: ChainLayout, device_sets: int, numbers: Mapping[str, Numbers], *, leading: bool
) -> dict[str, Rules]:
    """The chains that depend on numbers; ``leading``: numbers that were given back still select their chains."""
    fixed = FixedChains(layout)
    chains = fixed.chains(device_sets)
    for root, own in numbers.items():
        generated_branches = branches(root, own.leading if leading else own.used, layout.marks)
        before = fixed.root() if root != names.TABLES else ()
        chains |= generated_branches | {root: (*before, *generated_branches[root])}
    return chains
