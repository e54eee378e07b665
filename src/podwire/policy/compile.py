"""Compiles the objects of a cluster to the profiles of one node's pods, at the cost of each change (pure).

Objects are set one by one; :meth:`Compiler.flush` returns what changed. Each pod of the node has at most one profile
for each direction; policies do not apply to a pod without profiles. What a change recomputes:

- a pod of another node, or its labels: the entry of its addresses in each profile;
- a pod of this node: also the profiles of the pod, which may create or delete profiles;
- a policy: its rules in the profiles with its subject. If it is the first or last one with its selector, direction or
  named port, also the choice of profiles for the pods of this node that it selects or selected; pods that the same
  policies select share that choice, and keep their profile where that is possible (:mod:`podwire.policy.nodepods`);
- the labels of a namespace: its pods; a node: its addresses.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from podwire.cluster.addresses import owns_addresses, pod_side_addresses
from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compiled import CompiledPolicy
from podwire.policy.nodepods import NodePods, PolicyDelta
from podwire.policy.owners import AddressOwners
from podwire.policy.peermatches import PeerMatcher
from podwire.policy.policychanges import PolicyChanges
from podwire.policy.profile import PeerMatch, Profile, ProfileKey
from podwire.policy.rules import cluster_network_policy, network_policy
from podwire.policy.selectors import SelectorIndex
from podwire.policy.subjects import Subjects

_SPARE_LABELS = 64
"""How many label sets of deleted pods a namespace keeps, at least; pods of jobs have new labels each time."""


class Compiler:
    """The policies of a cluster as one node enforces them."""

    def __init__(self, node: str, *, own_node_egress: bool = True) -> None:
        self.node = node
        self._namespaces: dict[str, dict[str, str]] = {}
        self._index = SelectorIndex(self.namespace_labels)
        self._owners = AddressOwners(self._index)
        self._pods: dict[str, Pod] = {}
        self._pods_in: dict[str, set[str]] = {}
        self._policies: dict[tuple[str, str], CompiledPolicy] = {}
        self._subjects = Subjects()
        self._matcher = PeerMatcher(node, self._owners, self._index, self._policies)
        self._node_pods = NodePods(node, self._index, self._subjects, self._pods)
        self._node_pods.own_node_egress = own_node_egress
        self._dirty_subjects: set[int] = set()
        self._dirty_addresses: set[str] = set()
        self._dirty_pods: set[str] = set()
        self._before: dict[tuple[str, str], CompiledPolicy | None] = {}
        """The changed policies as they were at the last flush."""
        self.profiles: dict[ProfileKey, Profile] = {}
        """The profiles of the pods of this node."""
        self.pods = self._node_pods.profiles
        """The pods of this node by key."""

    def everything(self) -> PolicyDelta:
        """The change from an empty state to the current one."""
        return PolicyDelta(pods=dict(self.pods), new_profiles=set(self.profiles))

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
        if reaches != self._node_pods.own_node_egress:
            self._node_pods.own_node_egress = reaches
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
        numbers = {version.subject for version in (before, policy) if version is not None}
        effects = {number: self._subjects.effects(number) for number in numbers}
        if before is not None:
            self._subjects.remove(key, before)
            before.release(self._index)
        if policy is not None:
            self._policies[key] = policy
            self._subjects.add(key, policy)
        self._dirty_subjects.update(n for n in numbers if self._subjects.effects(n) != effects[n])

    def flush(self) -> PolicyDelta:
        """Compiles the objects that were set since the last call, and returns the resulting change."""
        delta = PolicyDelta()
        self._owners.refresh()
        self._dirty_pods.update(self._node_pods.selected_by(self._dirty_subjects))
        subjects_before = self._node_pods.settle(self._dirty_pods, delta)
        for unused in self._node_pods.drop_unused():
            if self.profiles.pop(unused, None) is not None:
                delta.ended.add(unused)
        peers: dict[str, PeerMatch | None] = {}
        changes = PolicyChanges(self._before, self._policies, self._subjects)
        for profile_key in self._node_pods.uses:
            profile = self._change(profile_key, changes, subjects_before.get(profile_key), peers, delta)
            if profile is None:
                self.profiles[profile_key] = self._make(profile_key, peers)
                delta.new_profiles.add(profile_key)
            else:
                self._follow(profile, peers, delta)
        self._before.clear()
        self._dirty_pods.clear()
        self._dirty_subjects.clear()
        self._dirty_addresses.clear()
        return delta

    def _change(
        self,
        key: ProfileKey,
        changes: PolicyChanges,
        subjects_before: tuple[str, ...] | None,
        peers: dict[str, PeerMatch | None],
        delta: PolicyDelta,
    ) -> Profile | None:
        """Applies changed policies to a profile; returns None if the profile must be made anew.

        ``subjects_before`` are the selectors of its pods before the change; None: they did not change.
        """
        profile = self.profiles.get(key)
        if profile is None or not (changes or subjects_before is not None):
            return profile
        subjects = self._node_pods.chosen[key].subjects
        own = changes.between(key.direction, subjects if subjects_before is None else subjects_before, subjects)
        if not profile.fits(own):
            return None
        profile.subjects = subjects
        nodes: set[str] = set()
        for before, after in own:
            changed = profile.replace(before, after, self._owners, self._dirty_addresses)
            nodes.update(address for part in changed for address in self._owners.nodes_within(*part))
        for address in nodes:
            profile.follow(self._matcher.known(address, peers), address)
        if own or subjects_before is not None:
            delta.groups[key] = set()
        return profile

    def _follow(self, profile: Profile, peers: dict[str, PeerMatch | None], delta: PolicyDelta) -> None:
        """Updates the changed addresses in a profile, and adds all changes of the profile to ``delta``."""
        key = profile.key
        for address in self._dirty_addresses:
            profile.follow(self._matcher.known(address, peers), address)
        change = profile.peers.take_change()
        if change.groups or key in delta.groups:
            delta.groups[key] = change.groups
        if change.hosts:
            delta.hosts[key] = change.hosts
        if change.ranges:
            delta.ranges[key] = change.ranges
        if change.left_groups:
            delta.left_groups[key] = change.left_groups
        if change.lost:
            delta.lost[key] = change.lost
        if change.lessened:
            delta.lessened.add(key)

    def _make(self, key: ProfileKey, peers: dict[str, PeerMatch | None]) -> Profile:
        """A new profile with all addresses."""
        subjects = self._node_pods.chosen[key].subjects
        policies = (policy for text in subjects for policy in self._subjects.with_text(text).policies.values())
        profile = Profile(key, (policy for policy in policies if policy.concerns(key.direction)))
        profile.subjects = subjects
        if profile.by_name:
            addresses: Iterable[str] = self._owners.all_addresses()
        else:
            for labels, own in self._owners.matching(profile.selectors):
                profile.fill(self._index.numbers(labels), own)
            in_blocks = chain.from_iterable(self._owners.within(*covered) for covered in profile.covered())
            addresses = {*self._owners.nodes(), *in_blocks}
        for address in addresses:
            profile.follow(self._matcher.known(address, peers), address)
        profile.peers.take_change()
        return profile

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
