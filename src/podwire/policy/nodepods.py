"""The profiles of the pods of one node, and how many pods have each profile (pure).

Pods that the same selectors select have one profile. When all pods of a profile get the same other selectors (a policy
with a selector of its own came, or the pods have other labels), they keep the profile, and the rules of the profile
change instead: that costs the rules of the change, while a new profile costs all rules and all peers. A profile is kept
only if no pod leaves it for another profile and no pod joins it in the same change, so that no packet meets rules that
are not yet, or never were, those of its pod; and if the selectors are all that changes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

import msgspec
from msgspec.structs import replace

from podwire.model.pod import Pod
from podwire.policy.compiled import NamedPort, named_ports
from podwire.policy.hostgroups import HostGroup
from podwire.policy.ports import Range
from podwire.policy.profile import ProfileKey
from podwire.policy.rules import DIRECTIONS, INGRESS
from podwire.policy.selectors import SelectorIndex
from podwire.policy.subjects import Subjects

ProfileChoice = tuple[ProfileKey | None, ProfileKey | None]
"""What selects a pod in ingress and egress, as keys with ``copy`` 0; None: no policy applies."""
ProfileChoices = dict[tuple[frozenset[int], tuple[NamedPort, ...]], ProfileChoice]
"""The choices by the subjects of the policies that select a pod and by its named ports."""
_NO_PROFILES: ProfileChoice = (None, None)


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
    ranges: dict[ProfileKey, dict[int, list[Range]]] = {}
    """By profile of :attr:`groups` and family (4, 6): the regions in which ranges came, went or have other rules."""
    left_groups: dict[ProfileKey, set[HostGroup]] = {}
    """By profile of :attr:`groups`: the groups of the surroundings that some addresses left for other groups."""
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
        self.chosen: dict[ProfileKey, ProfileKey] = {}
        """By profile: what selects its pods, as a key with ``copy`` 0."""
        self._profile_of: dict[ProfileKey, ProfileKey] = {}
        """The profiles by what selects their pods."""

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
            del self._profile_of[self.chosen.pop(key)]
        return unused

    def settle(self, keys: Iterable[str], delta: PolicyDelta) -> dict[ProfileKey, tuple[str, ...]]:
        """Updates the profiles of some pods of this node.

        Returns the profiles whose pods have other selectors now, each with its selectors from before.
        """
        choices: ProfileChoices = {}
        choice_of = {key: self._choice(key, choices) for key in sorted(keys)}
        subjects_before = self._keep(choice_of)
        for key, choice in choice_of.items():
            self._place(key, choice, delta)
        return subjects_before

    def _choice(self, key: str, choices: ProfileChoices) -> ProfileChoice | None:
        """What selects a pod; None: it is not a pod of this node. ``choices`` has those of other pods."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name != self._node:
            return None
        ports = named_ports(pod.declared_ports)
        matching = self._index.matching(pod.metadata.namespace, pod.metadata.labels)
        subjects = self._selected_by[key] = self._subjects.among(matching)
        choice = choices.get((subjects, ports))
        if choice is None:
            ingress, egress = (self._key(direction, subjects, ports) for direction in DIRECTIONS)
            choice = choices[subjects, ports] = (ingress, egress)
        return choice

    def _keep(self, choice_of: Mapping[str, ProfileChoice | None]) -> dict[ProfileKey, tuple[str, ...]]:
        """Gives a profile the selectors of a new profile that all of its pods, and no other pods, would get."""
        changing: Counter[ProfileKey] = Counter()
        targets: dict[ProfileKey, set[ProfileKey | None]] = {}
        sources: dict[ProfileKey, set[ProfileKey | None]] = {}
        current = {id(choice): self._profiles_for(choice) for choice in choice_of.values()}
        for key, choice in choice_of.items():
            own = self.profiles.get(key)
            before = (own.ingress, own.egress) if own is not None else _NO_PROFILES
            if choice is not None and before == current[id(choice)]:
                continue
            changing.update(profile for profile in before if profile is not None)
            for profile, target in zip(before, choice, strict=True) if choice is not None else ():
                if profile is not None:
                    targets.setdefault(profile, set()).add(target)
                if target is not None:
                    sources.setdefault(target, set()).add(profile)
        subjects_before: dict[ProfileKey, tuple[str, ...]] = {}
        for profile, own_targets in targets.items():
            target, before_choice = next(iter(own_targets)), self.chosen[profile]
            if target is None or target in self._profile_of or before_choice in sources:
                continue
            alone = len(own_targets) == len(sources[target]) == 1 and changing[profile] == self.uses[profile]
            if alone and replace(before_choice, subjects=()) == replace(target, subjects=()):
                subjects_before[profile] = before_choice.subjects
                del self._profile_of[before_choice]
                self.chosen[profile], self._profile_of[target] = target, profile
        return subjects_before

    def _profiles_for(self, choice: ProfileChoice | None) -> ProfileChoice:
        """The profiles that exist for what selects a pod."""
        if choice is None:
            return _NO_PROFILES
        ingress, egress = choice
        return (
            self._profile_of.get(ingress) if ingress is not None else None,
            self._profile_of.get(egress) if egress is not None else None,
        )

    def _profile(self, choice: ProfileKey | None) -> ProfileKey | None:
        """The profile for what selects a pod; a new one gets a key that no profile has."""
        if choice is None:
            return None
        profile = self._profile_of.get(choice)
        if profile is None:
            profile = choice
            while profile in self.chosen:
                profile = replace(profile, copy=profile.copy + 1)
            self._profile_of[choice], self.chosen[profile] = profile, choice
        return profile

    def _place(self, key: str, choice: ProfileChoice | None, delta: PolicyDelta) -> None:
        """Gives a pod its profiles."""
        before, after = self.profiles.get(key), None
        if choice is not None:
            ingress, egress = map(self._profile, choice)
            after = PodProfiles(addresses=self._pods[key].addresses, ingress=ingress, egress=egress)
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

    def _key(self, direction: str, selecting: frozenset[int], ports: tuple[NamedPort, ...]) -> ProfileKey | None:
        subjects = self._subjects.concerning(direction, selecting)
        if not subjects:
            return None
        names = self._subjects.names(direction, subjects) if direction == INGRESS else set()
        return ProfileKey(
            direction=direction,
            subjects=self._subjects.texts(subjects),
            cluster=self._subjects.any_cluster(subjects),
            named=tuple(sorted(port for port in ports if port[0] in names)),
            own_node_egress=self.own_node_egress,
        )
