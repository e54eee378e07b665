"""The profiles of the pods of one node, and how many pods have each profile (pure)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

import msgspec

from podwire.model.pod import Pod
from podwire.policy.compiled import NamedPort, named_ports
from podwire.policy.hostgroups import HostGroup
from podwire.policy.profile import ProfileKey
from podwire.policy.rules import DIRECTIONS, INGRESS
from podwire.policy.selectors import SelectorIndex
from podwire.policy.subjects import Subjects

ProfileChoices = dict[tuple[frozenset[int], tuple[NamedPort, ...]], tuple[ProfileKey | None, ProfileKey | None]]
"""The profiles of ingress and egress, by the subjects of the policies that select a pod and by its named ports."""


class PodProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses and profiles of one pod of this node; a profile of None: no policy applies in that direction."""

    addresses: tuple[str, ...]
    ingress: ProfileKey | None = None
    egress: ProfileKey | None = None


class PolicyDelta(msgspec.Struct, kw_only=True):
    """The changes of one :meth:`Compiler.flush`."""

    pods: dict[str, PodProfiles | None] = {}
    """Changed pods of this node by key; None: the pod was deleted."""
    new_profiles: set[ProfileKey] = set()
    """New profiles, and profiles that were made again."""
    groups: dict[ProfileKey, set[HostGroup]] = {}
    """By profile: its groups with another table, new groups and empty groups. A profile whose policies changed is a key
    even if no group changed."""
    hosts: dict[ProfileKey, set[str]] = {}
    """By profile: the addresses that moved to another group. Everything else of the profiles in this field and in
    :attr:`groups` is unchanged."""
    ranges: dict[ProfileKey, set[int]] = {}
    """By profile of :attr:`groups`: the families (4, 6) in which ranges came, went or have other rules."""
    lost: dict[ProfileKey, set[str]] = {}
    """The addresses of :attr:`hosts` for which traffic is denied now that was accepted before."""
    lessened: set[ProfileKey] = set()
    """Profiles of :attr:`groups` whose changed policies may deny traffic now that was accepted before."""
    ended: set[ProfileKey] = set()
    """Profiles that no pod of this node has any more."""

    def __bool__(self) -> bool:
        return bool(self.pods or self.new_profiles or self.groups or self.hosts or self.ended)


class NodePods:
    """Chooses the profiles of the pods of one node."""

    def __init__(self, node: str, index: SelectorIndex, subjects: Subjects, pods: Mapping[str, Pod]) -> None:
        """``pods`` are the pods of all nodes by key."""
        self._node = node
        self._index = index
        self._subjects = subjects
        self._pods = pods
        self._selected_by: dict[str, frozenset[int]] = {}
        """The subjects of the policies that select each pod of the node, as of the last flush."""
        self.own_node_egress = True
        """Whether pods reach their own node regardless of NetworkPolicies."""
        self.uses: Counter[ProfileKey] = Counter()
        """How many pods have each profile."""
        self.profiles: dict[str, PodProfiles] = {}
        """The profiles of each pod of the node by its key."""

    def selected_by(self, subjects: Set[int]) -> Iterator[str]:
        """The pods of this node that changed policies select now, or selected before."""
        for key, selected_by in self._selected_by.items() if subjects else ():
            pod = self._pods.get(key)
            if not subjects.isdisjoint(selected_by) or (
                pod is not None
                and not subjects.isdisjoint(self._index.matching(pod.metadata.namespace, pod.metadata.labels))
            ):
                yield key

    def drop_unused(self) -> list[ProfileKey]:
        """Forgets the profiles that no pod has any more, and returns them."""
        unused = [key for key, uses in self.uses.items() if not uses]
        for key in unused:
            del self.uses[key]
        return unused

    def settle(self, key: str, delta: PolicyDelta, choices: ProfileChoices) -> None:
        """Updates the profiles of one pod of this node."""
        before = self.profiles.get(key)
        pod = self._pods.get(key)
        after = self._profiles_of(key, pod, choices) if pod is not None and pod.spec.node_name == self._node else None
        if after == before:
            return
        for profiles, step in ((after, 1), (before, -1)):
            for profile_key in (profiles.ingress, profiles.egress) if profiles is not None else ():
                if profile_key is not None:
                    self.uses[profile_key] += step
        if after is None:
            del self.profiles[key], self._selected_by[key]
        else:
            self.profiles[key] = after
        delta.pods[key] = after

    def _profiles_of(self, key: str, pod: Pod, choices: ProfileChoices) -> PodProfiles:
        """The profiles of a pod of this node; ``choices`` has those of other pods in the same flush."""
        ports = named_ports(pod.declared_ports)
        matching = self._index.matching(pod.metadata.namespace, pod.metadata.labels)
        subjects = self._selected_by[key] = self._subjects.among(matching)
        choice = choices.get((subjects, ports))
        if choice is None:
            ingress, egress = (self._key(direction, subjects, ports) for direction in DIRECTIONS)
            choice = choices[subjects, ports] = (ingress, egress)
        return PodProfiles(addresses=pod.addresses, ingress=choice[0], egress=choice[1])

    def _key(self, direction: str, selecting: Iterable[int], ports: tuple[NamedPort, ...]) -> ProfileKey | None:
        subjects = [subject for subject in map(self._subjects.__getitem__, selecting) if subject.concerns(direction)]
        if not subjects:
            return None
        names = {name for subject in subjects for name in subject.names(direction)} if direction == INGRESS else set()
        return ProfileKey(
            direction=direction,
            subjects=tuple(sorted(subject.text for subject in subjects)),
            cluster=any(subject.cluster for subject in subjects),
            named=tuple(sorted(port for port in ports if port[0] in names)),
            own_node_egress=self.own_node_egress,
        )
