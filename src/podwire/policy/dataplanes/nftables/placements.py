"""The pods of the table of one family, and the elements that lead their packets to the chains of profiles (pure)."""

from collections.abc import Hashable, Mapping

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables.layout import TableLayout, node_name, profile_of
from podwire.policy.dataplanes.nftables.podelements import Chains, PodElements
from podwire.policy.nodepods import PodProfiles
from podwire.policy.profile import ProfileKey
from podwire.policy.profilenames import NO_NAMES, KernelNames, ProfileName, kernel_names
from podwire.state.nft import Chain, Element, Set, Table

Elements = dict[str, dict[bytes, Element]]

_LEADING = ("ingress", "bridged", "egress")
"""The sets whose elements lead pods to profiles, and do not also lead other pods there."""
_NO_CHAINS = Chains(ingress="", egress="", to_node="")


class PodPlacements:
    """The device and the profiles of each pod."""

    def __init__(
        self, layout: TableLayout, keyed: KeyedContents[Chain, Set, bytes, Element], names: Mapping[ProfileKey, str]
    ) -> None:
        """``keyed`` receives the elements; ``names`` has the current chain of each profile."""
        self._elements = PodElements(layout)
        self._keyed = keyed
        self._names = names
        self._pods: dict[str, tuple[str, PodProfiles]] = {}

    @property
    def profiles(self) -> Mapping[str, tuple[str, PodProfiles]]:
        """The device and the profiles of each pod, by its key."""
        return self._pods

    def configure(self, layout: TableLayout) -> None:
        """Takes over another layout."""
        self._elements = PodElements(layout)

    def lead(self, key: ProfileKey) -> None:
        """Leads the pods of a profile to the current chain of the profile."""
        for pod, (device, profiles) in self._pods.items():
            if key in (profiles.ingress, profiles.egress):
                self._keyed.claim(pod, self._elements_of_profile(device, profiles, key.direction))

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """Sets the device and the profiles of a pod; ``profiles`` None: the pod was deleted."""
        before = self._pods.pop(pod, None)
        if before is not None:
            self._keyed.release(pod, self._of_device(*before))
        if profiles is not None:
            self._pods[pod] = (device, profiles)
            self._keyed.claim(pod, self._of_device(device, profiles))

    def _of_device(self, device: str, profiles: PodProfiles) -> Elements:
        return self._elements.of_device(device, profiles.addresses, self._chains_of(profiles))

    def _elements_of_profile(self, device: str, profiles: PodProfiles, direction: str) -> Elements:
        """The elements of :meth:`_of_device` that lead to the profile of one direction."""
        return self._elements.leading(device, profiles.addresses, self._chains_of(profiles), direction)

    def _chains_of(self, profiles: PodProfiles) -> Chains:
        ingress, egress = (self._names[key] if key else "" for key in (profiles.ingress, profiles.egress))
        return Chains(ingress=ingress, egress=egress, to_node=self._to_own_node(profiles.egress))

    def _to_own_node(self, key: ProfileKey | None) -> str:
        """The chain for packets from pods to their own node; empty: no policy applies to them."""
        return node_name(self._names[key]) if key is not None and key.to_own_node else ""


def names_in_kernel(
    have: Table | None,
    layout: TableLayout,
    pods: Mapping[str, PodProfiles],
    devices: Mapping[str, str],
    other_family: Mapping[ProfileKey, ProfileName] = NO_NAMES.by_profile,
) -> KernelNames:
    """The names that the profiles of pods have in the kernel's table; ``devices`` has the device of each pod.

    ``other_family`` are those of the other family's table.
    """
    profiles = {chain.name: profile_of(chain) for chain in have.chains} if have is not None else {}
    leads = (
        ((declared.name, key), profile)
        for declared in (have.sets if have is not None else ())
        if declared.name in _LEADING
        for key, element in declared.elements.items()
        if element.verdict is not None and (profile := profiles.get(element.verdict.chain)) is not None
    )
    elements = PodElements(layout)
    owners: dict[Hashable, ProfileKey | None] = {}
    for pod, own in pods.items():
        if devices.get(pod):
            for direction, profile_key in (("Ingress", own.ingress), ("Egress", own.egress)):
                leading = elements.leading(devices[pod], own.addresses, _NO_CHAINS, direction)
                owners |= {(name, key): profile_key for name, entries in leading.items() for key in entries}
    return kernel_names(leads, owners, other_family)
