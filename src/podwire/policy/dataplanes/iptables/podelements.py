"""The set elements of pods, which give packets the numbers of their profiles' chains (pure)."""

from collections.abc import Hashable, Mapping

import msgspec

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.layout import OPEN, PER_SET, SHARED, ChainLayout
from podwire.policy.dataplanes.iptables.numbers import Numbers, known_numbers
from podwire.policy.nodepods import PodProfiles
from podwire.policy.profile import ProfileKey
from podwire.policy.profilenames import NO_NAMES, KernelNames, ProfileName, kernel_names
from podwire.state.ipset import PLAIN, IpSet, IpSetElement
from podwire.state.iptables import Rules

Elements = dict[str, dict[str, IpSetElement]]


class PodElements:
    """The elements of the pods of one family, by device and address."""

    def __init__(
        self,
        layout: ChainLayout,
        keyed: KeyedContents[Rules, IpSet, str, IpSetElement],
        numbers: Mapping[str, Numbers],
        names_of_chains: Mapping[ProfileKey, str],
        sets: Mapping[str, IpSet],
    ) -> None:
        """``keyed`` receives the sets of devices; ``sets`` are those that the kernel holds."""
        self.layout = layout
        self.devices = Numbers(0, 1 << 30, _known_devices(layout, sets))
        self.device_sets = 1 + max(_device_sets(layout, sets), default=0)
        """The number of sets of devices."""
        self._keyed = keyed
        self._numbers = numbers
        self._names = names_of_chains

    def claim(self, pod: str, device: str, profiles: PodProfiles) -> None:
        """Adds the elements of a pod."""
        self._keyed.claim(pod, self._of_pod(device, profiles))

    def release(self, pod: str, device: str, profiles: PodProfiles) -> None:
        """Removes the elements of a pod; a device without elements gives its number back."""
        self._keyed.release(pod, self._of_pod(device, profiles))
        if not self._keyed.has_element(self._device_set(device), self.layout.of_device(device)):
            self.devices.give_back(device)

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
        number = self.devices.take(device)
        declared = self.layout.device_set(number)
        if declared.name not in self._keyed.sets:
            self._keyed.add_set(declared)
            self.device_sets = max(self.device_sets, number // PER_SET + 1)
        return declared.name

    def _number_of(self, root: str, key: ProfileKey | None) -> int:
        return self._numbers[root].used[self._names[key]] if key is not None else OPEN


class KernelState(msgspec.Struct, frozen=True):
    """What the kernel holds of one family."""

    chains: Mapping[str, Rules]
    sets: Mapping[str, IpSet]


def names_in_kernel(
    layout: ChainLayout,
    have: KernelState,
    pods: Mapping[str, PodProfiles],
    devices: Mapping[str, str],
    other_family: Mapping[ProfileKey, ProfileName] = NO_NAMES.by_profile,
) -> KernelNames:
    """The names that the profiles of pods have in the kernel's chains; ``devices`` has the device of each pod.

    ``other_family`` are those of the other family's chains.
    """
    leads: list[tuple[Hashable, ProfileName]] = []
    for word, root in (("ingress", names.IN), ("egress", names.OUT)):
        numbers = known_numbers(have.chains, root, f"{root}-", layout.marks)
        profiles = {
            layout.numbered(number): names.profile_of(have.chains.get(chain, ())) for chain, number in numbers.items()
        }
        declared = have.sets.get(layout.set_name(word))
        for key, element in declared.elements.items() if declared is not None else ():
            name = profiles.get(element)
            if name is not None:
                leads.append(((word, key), name))
    owners: dict[Hashable, ProfileKey | None] = {}
    for pod, own in pods.items():
        for address in own.addresses if devices.get(pod) else ():
            key = f"{address},{devices[pod]}"
            owners |= {("ingress", key): own.ingress, ("egress", key): own.egress}
    return kernel_names(leads, owners, other_family)


def _device_sets(layout: ChainLayout, sets: Mapping[str, IpSet]) -> dict[int, IpSet]:
    """The sets of devices by their numbers, including empty ones."""
    prefix = layout.set_name("devices-")
    numbered = ((name.removeprefix(prefix), ipset) for name, ipset in sets.items() if name.startswith(prefix))
    return {int(number): ipset for number, ipset in numbered if number.isdecimal()}


def _known_devices(layout: ChainLayout, sets: Mapping[str, IpSet]) -> dict[str, int]:
    """The numbers of devices, as given by the sets that hold the devices now."""
    numbers: dict[str, int] = {}
    for number, ipset in _device_sets(layout, sets).items():
        devices = sorted(key.rpartition(",")[2] for key in ipset.elements)[:PER_SET]
        numbers |= {
            device: number * PER_SET + position for position, device in enumerate(devices) if device not in numbers
        }
    return numbers
