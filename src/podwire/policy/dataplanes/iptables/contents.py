"""The chains and sets of one family; an update costs only as much as the change (pure).

Marks of packets select the chains of profiles and tables by number (:mod:`.numbers`). A change is the difference
between the chains and sets that it touches, before and after. A profile's chain and its networks never change; its
exact addresses change one by one, and the chains of a table at once.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from podwire.dataplane.contents import KeyedContents
from podwire.policy.compile import PodProfiles, PolicyDelta
from podwire.policy.contents import group_changes, profiles_left
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.cidrs import networks
from podwire.policy.dataplanes.iptables.layout import FIRST, OPEN, PER_SET, SHARED, ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers, branches, known_numbers
from podwire.policy.dataplanes.iptables.portchains import NumberedChainWriter, known_tables
from podwire.policy.dataplanes.iptables.steps import FamilyContents, Steps, steps
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.tablechains import GroupChains, GroupChange, TableChains
from podwire.policy.verdicts import RuleHit
from podwire.state.ipset import PLAIN, IpSet, IpSetElement
from podwire.state.iptables import Rules, Ruleset
from podwire.state.iptables_diff import Saved

Elements = dict[str, dict[str, IpSetElement]]


class Contents:
    """One family; ``chains`` and ``sets`` are the kernel's current ones: chain names keep their numbers from there."""

    def __init__(self, layout: ChainLayout, chains: Mapping[str, Rules], sets: Mapping[str, IpSet]) -> None:
        self.layout = layout
        marks = layout.marks
        self._numbers = {
            names.OUT: Numbers(FIRST, marks.last, known_numbers(chains, names.OUT, f"{names.OUT}-", marks)),
            names.IN: Numbers(FIRST, marks.last, known_numbers(chains, names.IN, f"{names.IN}-", marks)),
            names.TABLES: Numbers(1, marks.last, known_numbers(chains, names.TABLES, names.PORTS, marks)),
        }
        self._devices = Numbers(0, 1 << 30, _known_devices(layout, sets))
        self._device_sets = 1 + max(_device_sets(layout, sets), default=0)
        self._keyed: KeyedContents[Rules, IpSet, str, IpSetElement] = KeyedContents()
        self._names: dict[ProfileKey, str] = {}
        self._groups: dict[ProfileKey, GroupChains] = {}
        self._placed: dict[str, tuple[str, PodProfiles]] = {}
        self._writer = NumberedChainWriter(layout, self._keyed, self._numbers[names.TABLES])
        self._tables = TableChains(self._writer, known_tables(chains))
        devices = (layout.device_set(number * PER_SET) for number in range(self._device_sets))
        for declared in (*layout.sets(), *devices):
            self._keyed.add_set(declared)
        self._generated: dict[str, Rules] = {}

    # What the kernel should hold

    def rules(self) -> FamilyContents:
        """All chains, sets and jumps of the family."""
        chains = {**self._keyed.chains, **self._generate(leading=False)}
        return FamilyContents(chains, {ipset.name: ipset for ipset in self._keyed.filled_sets()}, self.layout.jumps())

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

    def _generate(self, *, leading: bool) -> dict[str, Rules]:
        """The chains that depend on numbers; ``leading``: numbers that were given back still select their chains."""
        chains = self.layout.chains(self._device_sets)
        for root, numbers in self._numbers.items():
            generated_branches = branches(root, numbers.leading if leading else numbers.used, self.layout.marks)
            before = self.layout.root() if root != names.TABLES else ()
            chains |= generated_branches | {root: (*before, *generated_branches[root])}
        return chains

    # Updates

    def move(self, layout: ChainLayout) -> None:
        """Takes over changed ranges and addresses of the node or the cluster; the rules stay the same."""
        self.layout = self._writer.layout = layout
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them.

        Raises: KernelError when the packet mark has too few numbers for all profiles and tables.
        """
        for key in delta.made:
            self._write(profiles[key])
        left = profiles_left(self._placed, delta)
        for key, change in group_changes(delta):
            self._change(profiles[key], change, in_place=key not in left)

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """Sets the device and the profiles of a pod; ``profiles`` None: the pod was deleted."""
        before = self._placed.pop(pod, None)
        if before is not None:
            self._release(pod, *before)
        if profiles is not None:
            self._placed[pod] = (device, profiles)
            self._keyed.claim(pod, self._of_pod(device, profiles))

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        for key in keys:
            if key in self._names:
                self._end(self._names.pop(key))
                self._groups.pop(key).drop()
                self._tables.forget(key)

    # Pods

    def _release(self, pod: str, device: str, profiles: PodProfiles) -> None:
        self._keyed.release(pod, self._of_pod(device, profiles))
        if not self._keyed.has_element(self._device_set(device), self.layout.of_device(device)):
            self._devices.give_back(device)

    def _of_pod(self, device: str, profiles: PodProfiles) -> Elements:
        layout = self.layout
        six = layout.family == "ip6"
        own = [address for address in profiles.addresses if (":" in address) == six]
        pairs = [f"{address},{device}" for address in own]
        ingress = layout.numbered(self._number_of(names.IN, profiles.ingress))
        egress = layout.numbered(self._number_of(names.OUT, profiles.egress))
        shared = device in layout.bridges
        judged = profiles.egress is not None and profiles.egress.to_own_node
        return {
            layout.set_name("egress"): dict.fromkeys(pairs, egress),
            layout.set_name("ingress"): dict.fromkeys(pairs, ingress),
            layout.set_name("sources"): dict.fromkeys(own, egress),
            layout.set_name("to-node"): dict.fromkeys(pairs if judged else (), PLAIN),
            layout.set_name("own"): dict.fromkeys(() if shared else pairs, PLAIN),
            self._device_set(device): {layout.of_device(device): layout.numbered(SHARED) if shared else ingress},
        }

    def _device_set(self, device: str) -> str:
        number = self._devices.take(device)
        declared = self.layout.device_set(number)
        if declared.name not in self._keyed.sets:
            self._keyed.add_set(declared)
            self._device_sets = max(self._device_sets, number // PER_SET + 1)
        return declared.name

    def _number_of(self, root: str, key: ProfileKey | None) -> int:
        return self._numbers[root].used[self._names[key]] if key is not None else OPEN

    # Profiles

    def _write(self, profile: Profile) -> None:
        """Writes a whole profile: in place if its chain stays the same; else to a new chain, and moves its pods."""
        key, family = profile.key, self.layout.family
        before, groups_before = self._names.get(key), self._groups.get(key)
        groups = self._groups[key] = GroupChains(self._tables, profile, family)
        self._tables.know(profile)
        nets, rest = networks(profile, 6 if family == "ip6" else 4)
        default = groups.take(rest)
        ranges = {network: groups.take(group) for network, group in sorted(nets.items())}
        groups.update(profile.groups())
        chain = names.profile_chain(key, (default, ranges))
        if chain == before:
            self._keyed.fill_set(self._filled(chain, groups))
        else:
            self._move(key, chain, ranges, default)
        if groups_before is not None:
            groups_before.drop()

    def _move(self, key: ProfileKey, chain: str, ranges: Mapping[str, str], default: str) -> None:
        """Adds the chain of a profile, moves the pods of the profile there, and removes the chain from before."""
        before = self._names.get(key)
        pods = [(pod, *placed) for pod, placed in self._placed.items() if key in (placed[1].ingress, placed[1].egress)]
        for pod, device, profiles in pods:
            self._release(pod, device, profiles)
        self._add(key, chain, ranges, default)
        self._names[key] = chain
        for pod, device, profiles in pods:
            self._keyed.claim(pod, self._of_pod(device, profiles))
        if before is not None:
            self._end(before)

    def _add(self, key: ProfileKey, chain: str, ranges: Mapping[str, str], default: str) -> None:
        layout = self.layout
        self._numbers[_root(key)].take(chain)
        self._keyed.add_set(self._filled(chain, self._groups[key]))
        if ranges:
            declared = layout.declare(
                self._set_word(names.profile_sets(chain, layout.family)[1]), "hash:net", marks=True
            )
            elements = {network: self._writer.element(name) for network, name in ranges.items()}
            self._keyed.add_set(replace(declared, elements=elements))
        self._keyed.put_chain(chain, layout.profile(chain, key, default, ranged=bool(ranges)))

    def _filled(self, chain: str, groups: GroupChains) -> IpSet:
        """The set of a profile's exact addresses."""
        family = self.layout.family
        declared = self.layout.declare(self._set_word(names.profile_sets(chain, family)[0]), "hash:ip", marks=True)
        pairs = ((group, self._writer.element(table)) for group, table in groups.items())
        elements = {address: element for group, element in pairs for address in group.addresses[family]}
        return replace(declared, elements=elements)

    def _set_word(self, name: str) -> str:
        return name.removeprefix(names.set_prefix(self.layout.family))

    def _end(self, chain: str) -> None:
        self._keyed.remove_chain(chain)
        for name in names.profile_sets(chain, self.layout.family):
            if name in self._keyed.sets:
                self._keyed.remove_set(name)
        self._numbers[names.IN if chain.startswith(f"{names.IN}-") else names.OUT].give_back(chain)

    def _change(self, profile: Profile, change: GroupChange, *, in_place: bool) -> None:
        """Takes over changed groups of a profile, and addresses that moved from one group to another."""
        groups, chain = self._groups[profile.key], self._names[profile.key]
        hosts, _ = names.profile_sets(chain, self.layout.family)
        have = self._keyed.elements[hosts]
        chains = {self._writer.element(table): table for _, table in groups.items()} if change.moved else {}

        def led(address: str) -> str | None:
            element = have.get(address)
            return chains.get(element) if element is not None else None

        self._tables.know(profile)
        addresses, ranges = groups.follow(profile, change, led, in_place=in_place)
        if ranges:
            self._write(profile)
            return
        elements: dict[str, IpSetElement] = {}
        changes: dict[str, IpSetElement | None] = {}
        for address in addresses:
            table = groups.chain(profile.group(address))
            if table is not None and table not in elements:
                elements[table] = self._writer.element(table)
            changes[address] = elements[table] if table is not None else None
        self._keyed.put_elements(hosts, changes)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule for a chain name or a log prefix, if it exists or was removed lately; None: unknown."""
        return self._tables.meaning(name if name.startswith(names.RULE) else names.CHAIN + name.upper())

    def denials(self, keys: Iterable[ProfileKey]) -> set[str]:
        """The chains of the denials of some profiles, whose policies :meth:`meaning` names."""
        return self._tables.denials(keys)

    # Steps

    def loaded(self, saved: Saved, have: Mapping[str, IpSet]) -> Steps:
        """The steps from everything that the kernel holds to the desired state."""
        self._keyed.changes()
        return self._stepped(saved, have, self.rules())

    def changed(self) -> Steps:
        """The steps for all changes since the last call."""
        before, now = self._keyed.changes()
        generated = self._generate(leading=False)
        differing = {name: rules for name, rules in generated.items() if self._generated.get(name) != rules}
        gone = {name: rules for name, rules in self._generated.items() if generated.get(name) != rules}
        want = FamilyContents({**now.chains, **differing}, now.sets)
        return self._stepped({names.TABLE: {**before.chains, **gone}}, before.sets, want)

    def _stepped(self, saved: Saved, have: Mapping[str, IpSet], want: FamilyContents) -> Steps:
        during = self._generate(leading=True)
        final = self._generate(leading=False)
        for name in list(during):
            if name in want.chains or during[name] != final.get(name):
                continue
            del during[name]
        result = steps(saved, have, want, during)
        self._tables.settle()
        for numbers in (*self._numbers.values(), self._devices):
            numbers.settle()
        self._generated = final
        return result


def _root(key: ProfileKey) -> str:
    return names.IN if key.direction == "Ingress" else names.OUT


def _device_sets(layout: ChainLayout, sets: Mapping[str, IpSet]) -> dict[int, IpSet]:
    """The sets of devices by their numbers, including empty ones."""
    prefix = layout.set_name("devices-")
    words = ((name.removeprefix(prefix), ipset) for name, ipset in sets.items() if name.startswith(prefix))
    return {int(word): ipset for word, ipset in words if word.isdecimal()}


def _known_devices(layout: ChainLayout, sets: Mapping[str, IpSet]) -> dict[str, int]:
    """The numbers of devices, as given by the sets that hold the devices now."""
    numbers: dict[str, int] = {}
    for number, ipset in _device_sets(layout, sets).items():
        devices = sorted(key.rpartition(",")[2] for key in ipset.elements)[:PER_SET]
        numbers |= {
            device: number * PER_SET + position for position, device in enumerate(devices) if device not in numbers
        }
    return numbers
