"""The chains and sets of one family; an update costs only as much as the change (pure).

The name of each chain for a profile, a table or a rule is a hash of its meaning: a chain that two profiles need exists
once, and a chain that exists has the right rules. Marks of packets select the chains by number (:mod:`.numbers`). A
change is the difference between the chains and sets that it touches, before and after.
"""

from collections.abc import Iterable, Mapping

from podwire.dataplane.contents import KeyedContents
from podwire.policy.compile import PodProfiles, PolicyDelta
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.cidrs import networks
from podwire.policy.dataplanes.iptables.layout import FIRST, OPEN, PER_SET, SHARED, ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers, branches, known_numbers
from podwire.policy.dataplanes.iptables.portchains import NamedTable, NumberedTableChains
from podwire.policy.dataplanes.iptables.steps import FamilyContents, Steps, steps
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.verdicts import RuleHit, denying_policies
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
        self._taken: dict[str, tuple[str, ...]] = {}
        self._names: dict[ProfileKey, str] = {}
        self._hosts: dict[str, dict[str, str]] = {}
        self._placed: dict[str, tuple[str, PodProfiles]] = {}
        self._ports = NumberedTableChains(layout, self._keyed, self._numbers[names.TABLES])
        devices = (layout.device_set(number * PER_SET) for number in range(self._device_sets))
        for declared in (*layout.sets(), *devices):
            self._keyed.add_set(declared)
        self._generated: dict[str, Rules] = {}

    # What the kernel should hold

    def rules(self) -> FamilyContents:
        """All chains, sets and jumps of the family."""
        chains = {**self._keyed.chains, **self._generate(leading=False)}
        return FamilyContents(chains, {ipset.name: ipset for ipset in self._keyed.filled_sets()}, self.layout.jumps())

    def differs(self, saved: Saved, sizes: Mapping[str, int]) -> bool:
        """Whether the rules differ from the desired ones, or a set has a different number of elements."""
        if any(sizes.get(name) != len(elements) for name, elements in self._keyed.elements.items()):
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
        self.layout = self._ports.layout = layout
        for declared in layout.node_sets():
            self._keyed.fill_set(declared)

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them.

        Raises: KernelError when the packet mark has too few numbers for all profiles and tables.
        """
        for key in delta.made:
            self._write(profiles[key])
        for key, addresses in delta.hosts.items():
            self._write_hosts(self._names[key], profiles[key], addresses)

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
        key = profiles.egress
        judged = key is not None and (not key.own_node_egress or bool(key.cluster_policies))
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
        key, before = profile.key, self._names.get(profile.key)
        denying = denying_policies(key)
        nets, rest = networks(profile, 6 if self.layout.family == "ip6" else 4)
        default = names.ports_chain(rest, denying), rest
        ranges = {network: (names.ports_chain(table, denying), table) for network, table in sorted(nets.items())}
        meaning = default[0], {network: name for network, (name, _) in ranges.items()}
        chain = names.profile_chain(key, meaning)
        if chain == before:
            self._write_hosts(chain, profile, {**profile.hosts, **self._hosts[chain]})
            return
        pods = [(pod, *placed) for pod, placed in self._placed.items() if key in (placed[1].ingress, placed[1].egress)]
        for pod, device, profiles in pods:
            self._release(pod, device, profiles)
        self._add(chain, profile, ranges, default)
        self._names[key] = chain
        for pod, device, profiles in pods:
            self._keyed.claim(pod, self._of_pod(device, profiles))
        if before is not None:
            self._end(before)

    def _add(self, chain: str, profile: Profile, ranges: Mapping[str, NamedTable], default: NamedTable) -> None:
        key, layout = profile.key, self.layout
        self._numbers[_root(key)].take(chain)
        by_address, by_network = names.profile_sets(chain, layout.family)
        prefix = names.set_prefix(layout.family)
        self._hosts[chain] = {}
        self._keyed.add_set(layout.declare(by_address.removeprefix(prefix), "hash:ip", marks=True))
        taken = [self._ports.take(default, key)]
        if ranges:
            self._keyed.add_set(layout.declare(by_network.removeprefix(prefix), "hash:net", marks=True))
            for network, named in ranges.items():
                taken.append(self._ports.take(named, key))
                self._keyed.put_element(by_network, network, self._ports.element(taken[-1]))
        self._keyed.put_chain(chain, layout.profile(chain, key, taken[0], ranged=bool(ranges)))
        self._taken[chain] = tuple(taken)
        self._write_hosts(chain, profile, profile.hosts)

    def _end(self, chain: str) -> None:
        for taken in self._hosts.pop(chain).values():
            self._ports.drop(taken)
        for taken in self._taken.pop(chain):
            self._ports.drop(taken)
        self._keyed.remove_chain(chain)
        for name in names.profile_sets(chain, self.layout.family):
            if name in self._keyed.sets:
                self._keyed.remove_set(name)
        self._numbers[names.IN if chain.startswith(f"{names.IN}-") else names.OUT].give_back(chain)

    def _write_hosts(self, chain: str, profile: Profile, addresses: Iterable[str]) -> None:
        """Updates exact addresses of a profile; peers share tables, so few chain names are computed."""
        six = self.layout.family == "ip6"
        hosts, _ = names.profile_sets(chain, self.layout.family)
        names_by_table: dict[int, str] = {}
        have = self._hosts[chain]
        denying = denying_policies(profile.key)
        for address in addresses:
            if (":" in address) != six:
                continue
            table, before = profile.hosts.get(address), have.get(address)
            if table is None:
                if before is not None:
                    del have[address]
                    self._keyed.put_element(hosts, address, None)
                    self._ports.drop(before)
                continue
            name = names_by_table.get(id(table)) or names_by_table.setdefault(
                id(table), names.ports_chain(table, denying)
            )
            if name != before:
                have[address] = self._ports.take((name, table), profile.key)
                self._keyed.put_element(hosts, address, self._ports.element(name))
                if before is not None:
                    self._ports.drop(before)

    def meaning(self, name: str) -> RuleHit | None:
        """The rule for a chain name or a log prefix, if it exists or was removed lately; None: unknown."""
        return self._ports.meaning(name)

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
