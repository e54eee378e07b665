"""Compiles the objects of a cluster to the profiles of one node's pods, at the cost of each change (pure).

Objects are set one by one; :meth:`Compiler.flush` returns what changed. Each pod of the node has at most one profile
for each direction; policies do not apply to a pod without profiles. What a change recomputes:

- a pod of another node, or its labels: the entry of its addresses in each profile;
- a pod of this node: also the profiles of the pod, which may create or delete profiles;
- a policy: its rules in the profiles with its subject, and the choice of profiles for the pods of this node that it
  selects or selected; pods that the same policies select share that choice;
- the labels of a namespace: its pods; a node: its addresses.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.cluster.addresses import owns_addresses, pod_side_addresses
from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compiled import CompiledPolicy, NamedPort, named_ports
from podwire.policy.hostgroups import HostGroup
from podwire.policy.owners import AddressOwners
from podwire.policy.profile import PeerMatch, PolicyChange, Profile, ProfileKey
from podwire.policy.rules import DIRECTIONS, INGRESS, cluster_network_policy, network_policy, node_selector
from podwire.policy.selectors import SelectorIndex
from podwire.policy.subjects import Subjects

_SPARE_LABELS = 64
"""How many label sets of deleted pods a namespace keeps, at least; pods of jobs have new labels each time."""


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
    made: set[ProfileKey] = set()
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
        return bool(self.pods or self.made or self.groups or self.hosts or self.ended)


class Compiler:
    """The policies of a cluster as one node enforces them."""

    def __init__(self, node: str, *, own_node_egress: bool = True) -> None:
        self.node = node
        self._own_node_egress = own_node_egress
        self._namespaces: dict[str, dict[str, str]] = {}
        self._index = SelectorIndex(self.namespace_labels)
        self._owners = AddressOwners(self._index)
        self._pods: dict[str, Pod] = {}
        self._pods_in: dict[str, set[str]] = {}
        self._policies: dict[tuple[str, str], CompiledPolicy] = {}
        self._subjects = Subjects()
        self._selected_by: dict[str, frozenset[int]] = {}
        """The subjects of the policies that select each pod of this node, as of the last flush."""
        self._dirty_subjects: set[int] = set()
        self._dirty_addresses: set[str] = set()
        self._dirty_pods: set[str] = set()
        self._before: dict[tuple[str, str], CompiledPolicy | None] = {}
        """The changed policies as they were at the last flush."""
        self._uses: Counter[ProfileKey] = Counter()
        self.profiles: dict[ProfileKey, Profile] = {}
        """The profiles of the pods of this node."""
        self.pods: dict[str, PodProfiles] = {}
        """The pods of this node by key."""

    def everything(self) -> PolicyDelta:
        """The change from an empty state to the current one."""
        return PolicyDelta(pods=dict(self.pods), made=set(self.profiles))

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """The labels of a namespace, its name among them."""
        return self._namespaces.get(name, {}) | {"kubernetes.io/metadata.name": name}

    def remembered_labels(self, namespace: str) -> int:
        """How many different sets of labels of a namespace are kept in memory."""
        return self._index.remembered(namespace)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Takes over a namespace that was added or changed; None: it was deleted."""
        before = self.namespace_labels(name)
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = dict(labels)
        if self.namespace_labels(name) != before:
            self._index.forget(name)
            self._look_up_again(name)
            for key in self._pods_in.get(name, ()):
                self._touch(key)

    def _look_up_again(self, namespace: str) -> None:
        self._owners.forget(self._pods[key] for key in self._pods_in.get(namespace, ()))

    def set_node(self, name: str, node: Node | None) -> None:
        """Takes over a node that was added or changed; None: it was deleted."""
        self._dirty_addresses.update(self._owners.set_node(name, node))

    def set_pod(self, key: str, pod: Pod | None) -> None:
        """Takes over a pod that was added or changed; None: it was deleted."""
        self._touch(key)
        before = self._pods.pop(key, None)
        after = pod if pod is not None and owns_addresses(pod) else None
        self._owners.set_pod(key, before, after)
        if before is not None:
            namespace = before.metadata.namespace
            self._pods_in[namespace].discard(key)
            if self._index.remembered(namespace) > 2 * len(self._pods_in[namespace]) + _SPARE_LABELS:
                self._index.forget(namespace)
                self._look_up_again(namespace)
        if after is not None:
            self._pods[key] = after
            self._pods_in.setdefault(after.metadata.namespace, set()).add(key)
        self._touch(key)

    def _touch(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is not None:
            self._dirty_addresses.update(pod.addresses)
        if key in self.pods or (pod is not None and pod.spec.node_name == self.node):
            self._dirty_pods.add(key)

    def set_own_node_egress(self, *, reaches: bool) -> None:
        """Sets whether pods reach their own node regardless of NetworkPolicies."""
        if reaches != self._own_node_egress:
            self._own_node_egress = reaches
            self._dirty_pods.update(self.pods)

    def set_policy(self, key: str, policy: NetworkPolicy | None) -> None:
        """Takes over a NetworkPolicy that was added or changed; None: it was deleted."""
        self._keep(("Namespace", key), network_policy(policy, self._index) if policy is not None else None)

    def set_cluster_policy(self, name: str, policy: ClusterNetworkPolicy | None) -> None:
        """Takes over a ClusterNetworkPolicy that was added or changed; None: it was deleted."""
        self._keep(("Cluster", name), cluster_network_policy(policy, self._index) if policy is not None else None)

    def _keep(self, key: tuple[str, str], policy: CompiledPolicy | None) -> None:
        before = self._policies.pop(key, None)
        self._before.setdefault(key, before)
        if before is not None:
            self._subjects.remove(key, before)
            before.release(self._index)
        if policy is not None:
            self._policies[key] = policy
            self._subjects.add(key, policy)
        self._dirty_subjects.update(version.subject for version in (before, policy) if version is not None)

    def flush(self) -> PolicyDelta:
        """Compiles the objects that were set since the last call, and returns the resulting change."""
        delta = PolicyDelta()
        self._owners.refresh()
        self._dirty_pods.update(self._pods_of_subjects())
        choices: ProfileChoices = {}
        for key in sorted(self._dirty_pods):
            self._settle(key, delta, choices)
        self._drop_unused(delta)
        peers: dict[str, PeerMatch | None] = {}
        changes = self._changes()
        for profile_key in self._uses:
            profile = self._change(profile_key, changes, peers, delta)
            if profile is None:
                self.profiles[profile_key] = self._make(profile_key, peers)
                delta.made.add(profile_key)
            else:
                self._follow(profile, peers, delta)
        self._before.clear()
        self._dirty_pods.clear()
        self._dirty_subjects.clear()
        self._dirty_addresses.clear()
        return delta

    def _changes(self) -> dict[tuple[str, str], list[PolicyChange]]:
        """The changed policies by direction and subject."""
        changes: dict[tuple[str, str], list[PolicyChange]] = {}
        for key, before in self._before.items():
            after = self._policies.get(key)
            for direction in DIRECTIONS:
                old = before if before is not None and before.concerns(direction) else None
                new = after if after is not None and after.concerns(direction) else None
                if old is not None and new is not None and old.selects == new.selects:
                    if old.in_direction(direction) != new.in_direction(direction):
                        changes.setdefault((direction, old.selects), []).append((old, new))
                    continue
                if old is not None:
                    changes.setdefault((direction, old.selects), []).append((old, None))
                if new is not None:
                    changes.setdefault((direction, new.selects), []).append((None, new))
        return changes

    def _change(
        self,
        key: ProfileKey,
        changes: Mapping[tuple[str, str], list[PolicyChange]],
        peers: dict[str, PeerMatch | None],
        delta: PolicyDelta,
    ) -> Profile | None:
        """Applies changed policies to a profile; returns None if a new profile must be made."""
        profile = self.profiles.get(key)
        if profile is None or not changes:
            return profile
        own = _joined(change for text in key.subjects for change in changes.get((key.direction, text), ()))
        if not profile.fits(own):
            return None
        nodes: set[str] = set()
        for before, after in own:
            changed = profile.replace(before, after, self._owners, self._dirty_addresses)
            nodes.update(address for part in changed for address in self._owners.nodes_within(*part))
        for address in nodes:
            profile.follow(self._known(address, peers), address)
        if own:
            delta.groups[key] = set()
        return profile

    def _follow(self, profile: Profile, peers: dict[str, PeerMatch | None], delta: PolicyDelta) -> None:
        """Updates the changed addresses in a profile, and adds all changes of the profile to ``delta``."""
        key = profile.key
        for address in self._dirty_addresses:
            profile.follow(self._known(address, peers), address)
        change = profile.peers.take_change()
        if change.groups or key in delta.groups:
            delta.groups[key] = change.groups
        if change.hosts:
            delta.hosts[key] = change.hosts
        if change.ranges:
            delta.ranges[key] = change.ranges
        if change.lost:
            delta.lost[key] = change.lost
        if change.lessened:
            delta.lessened.add(key)

    def _pods_of_subjects(self) -> Iterator[str]:
        """The pods of this node that changed policies select now, or selected before."""
        for key, selected_by in self._selected_by.items() if self._dirty_subjects else ():
            pod = self._pods.get(key)
            if not self._dirty_subjects.isdisjoint(selected_by) or (
                pod is not None
                and not self._dirty_subjects.isdisjoint(
                    self._index.matching(pod.metadata.namespace, pod.metadata.labels)
                )
            ):
                yield key

    def _drop_unused(self, delta: PolicyDelta) -> None:
        for profile_key in [key for key, uses in self._uses.items() if not uses]:
            del self._uses[profile_key]
            if self.profiles.pop(profile_key, None) is not None:
                delta.ended.add(profile_key)

    def _settle(self, key: str, delta: PolicyDelta, choices: ProfileChoices) -> None:
        """Updates the profiles of one pod of this node."""
        before = self.pods.get(key)
        pod = self._pods.get(key)
        after = self._profiles_of(key, pod, choices) if pod is not None and pod.spec.node_name == self.node else None
        if after == before:
            return
        for profiles, step in ((after, 1), (before, -1)):
            for profile_key in (profiles.ingress, profiles.egress) if profiles is not None else ():
                if profile_key is not None:
                    self._uses[profile_key] += step
        if after is None:
            del self.pods[key], self._selected_by[key]
        else:
            self.pods[key] = after
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
            own_node_egress=self._own_node_egress,
        )

    def _make(self, key: ProfileKey, peers: dict[str, PeerMatch | None]) -> Profile:
        """A new profile with all addresses."""
        policies = (policy for text in key.subjects for policy in self._subjects.with_text(text).policies.values())
        profile = Profile(key, (policy for policy in policies if policy.concerns(key.direction)))
        addresses = self._owners.nodes()
        if profile.by_address or profile.by_name:
            addresses = self._owners.all_addresses()
        else:
            for labels, own in self._owners.matching(profile.selectors):
                profile.fill(self._index.numbers(labels), own)
        for address in addresses:
            profile.follow(self._known(address, peers), address)
        profile.peers.take_change()
        return profile

    def _known(self, address: str, peers: dict[str, PeerMatch | None]) -> PeerMatch | None:
        """The result of :meth:`peer`, computed once for all profiles of a flush."""
        if address not in peers:
            peers[address] = self.peer(address)
        return peers[address]

    def own_addresses(self) -> frozenset[str]:
        """The addresses of this compiler's node that policies match."""
        return frozenset(self._owners.of_node(self.node))

    def addresses(self) -> set[str]:
        """All addresses of pods and nodes."""
        return self._owners.all_addresses()

    def party(self, address: str) -> Party:
        """The pod or node that owns an address, as an end of a connection."""
        owner = self._owners.owner(address)
        if isinstance(owner, Pod):
            return Party(address=address, node=owner.spec.node_name, pod=owner)
        if owner is None:
            return Party(address=address)
        known = pod_side_addresses(owner).get(address, ())
        return Party(address=address, node=owner.metadata.name, node_addresses=known)

    def peer(self, address: str) -> PeerMatch | None:
        """The selectors, named ports and node that match an address; None: no pod or node owns it."""
        self._owners.refresh()
        pod = self._owners.pod_peer(address)
        if pod is not None:
            return PeerMatch(address=address, selectors=self._index.numbers(pod.labels), named=pod.named)
        node = self._owners.owner(address)
        if not isinstance(node, Node):
            return None
        labels, known = node.metadata.labels, pod_side_addresses(node).get(address, ())
        matching = (text for text in self._node_selectors() if node_selector(text).matches(labels))
        own_node = node.metadata.name == self.node
        return PeerMatch(address=address, nodes=frozenset(matching), own_node=own_node, node_addresses=known)

    def _node_selectors(self) -> set[str]:
        cluster = (policy for (kind, _), policy in self._policies.items() if kind == "Cluster")
        return {text for policy in cluster for rules in policy.rules.values() for rule in rules for text in rule.nodes}


def _joined(changes: Iterable[PolicyChange]) -> list[PolicyChange]:
    """The changes, those of one policy that moved from one subject to another as one."""
    found: dict[str, PolicyChange] = {}
    for before, after in changes:
        policy = before or after
        assert policy is not None, "a change has a policy before or after"
        other_before, other_after = found.get(policy.key, (None, None))
        found[policy.key] = (before or other_before, after or other_after)
    return list(found.values())


def compile_world(world: World, node: str, *, own_node_egress: bool = True) -> Compiler:
    """The compiler of a node that was given all objects of ``world``; nothing is left to flush."""
    compiler = Compiler(node, own_node_egress=own_node_egress)
    for namespace in world.namespaces:
        compiler.set_namespace(namespace.metadata.name, namespace.metadata.labels)
    for known in world.nodes:
        compiler.set_node(known.metadata.name, known)
    for pod in world.pods:
        compiler.set_pod(key_of(pod.metadata), pod)
    for policy in world.policies:
        compiler.set_policy(key_of(policy.metadata), policy)
    for cluster_policy in world.cluster_policies:
        compiler.set_cluster_policy(cluster_policy.metadata.name, cluster_policy)
    compiler.flush()
    return compiler
