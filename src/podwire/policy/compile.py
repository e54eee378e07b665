"""Compiles the objects of a cluster to the profiles of one node's pods, at the cost of each change (pure).

Objects are set one by one; :meth:`Compiler.flush` returns what changed. Each pod of the node has at most one profile
for each direction; policies do not apply to a pod without profiles. What a change recomputes:

- a pod of another node, or its labels: the entry of its addresses in each profile;
- a pod of this node: also the profiles of the pod, which may create or delete profiles;
- a policy: the profiles with this policy, and the choice of profiles for the pods of this node that it selects or
  selected; pods that the same policies select share that choice;
- the labels of a namespace: its pods; a node: its addresses.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.cluster.addresses import owns_addresses, pod_side_addresses, precedence
from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.annotations import ALL, DROPS, NONE
from podwire.policy.ports import PortTable
from podwire.policy.profile import NamedPort, PeerMatch, Profile, ProfileKey, named_ports
from podwire.policy.rules import (
    DIRECTIONS,
    INGRESS,
    CompiledPolicy,
    cluster_network_policy,
    network_policy,
    node_selector,
)
from podwire.policy.selectors import SelectorIndex, SelectorMatches

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
    """New profiles, and profiles with changed policies."""
    hosts: dict[ProfileKey, set[str]] = {}
    """Addresses whose entry changed, by profile; everything else of these profiles is unchanged."""
    lost: dict[ProfileKey, set[str]] = {}
    """The addresses of :attr:`hosts` for which traffic is denied now that was accepted before."""
    ended: set[ProfileKey] = set()
    """Profiles that no pod of this node has any more."""

    def __bool__(self) -> bool:
        return bool(self.pods or self.made or self.hosts or self.ended)


class Compiler:
    """The policies of a cluster as one node enforces them."""

    def __init__(self, node: str, *, own_node_egress: bool = True) -> None:
        self.node = node
        self._own_node_egress = own_node_egress
        self._namespaces: dict[str, dict[str, str]] = {}
        self._index = SelectorIndex(self.namespace_labels)
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._at: dict[str, set[str]] = {}
        self._node_at: dict[str, str] = {}
        self._owners: dict[str, tuple[SelectorMatches, tuple[NamedPort, ...]]] = {}
        self._version = 0
        self._pods_in: dict[str, set[str]] = {}
        self._policies: dict[tuple[str, str], CompiledPolicy] = {}
        self._by_subject: dict[int, set[tuple[str, str]]] = {}
        self._selected_by: dict[str, frozenset[int]] = {}
        """The subjects of the policies that select each pod of this node, as of the last flush."""
        self._dirty_subjects: set[int] = set()
        self._dirty_addresses: set[str] = set()
        self._dirty_pods: set[str] = set()
        self._dirty_rules: set[tuple[str, str, str]] = set()
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
            for key in self._pods_in.get(name, ()):
                self._touch(key)

    def set_node(self, name: str, node: Node | None) -> None:
        """Takes over a node that was added or changed; None: it was deleted."""
        before = self._nodes.pop(name, None)
        for address in _addresses(before):
            self._dirty_addresses.add(address)
            if self._node_at.get(address) == name:
                del self._node_at[address]
        if node is not None:
            self._nodes[name] = node
        for address in _addresses(node):
            self._dirty_addresses.add(address)
            self._node_at[address] = name

    def set_pod(self, key: str, pod: Pod | None) -> None:
        """Takes over a pod that was added or changed; None: it was deleted."""
        self._touch(key)
        before = self._pods.pop(key, None)
        if before is not None:
            namespace = before.metadata.namespace
            self._pods_in[namespace].discard(key)
            if self._index.remembered(namespace) > 2 * len(self._pods_in[namespace]) + _SPARE_LABELS:
                self._index.forget(namespace)
            for address in before.addresses:
                self._at[address].discard(key)
                if not self._at[address]:
                    del self._at[address]
        if pod is not None and owns_addresses(pod):
            self._pods[key] = pod
            self._pods_in.setdefault(pod.metadata.namespace, set()).add(key)
            for address in pod.addresses:
                self._at.setdefault(address, set()).add(key)
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
        if before is not None:
            before.release(self._index)
            self._by_subject[before.subject].discard(key)
            if not self._by_subject[before.subject]:
                del self._by_subject[before.subject]
        if policy is not None:
            self._policies[key] = policy
            self._by_subject.setdefault(policy.subject, set()).add(key)
        if self._version != self._index.version:
            self._version = self._index.version
            self._owners.clear()
        self._dirty_subjects.update(version.subject for version in (before, policy) if version is not None)
        for direction in DIRECTIONS:
            rules = [version.rules.get(direction) for version in (before, policy) if version is not None]
            if len(rules) < 2 or rules[0] != rules[1]:
                self._dirty_rules.add((*key, direction))

    def flush(self) -> PolicyDelta:
        """Compiles the objects that were set since the last call, and returns the resulting change."""
        delta = PolicyDelta()
        for address in self._dirty_addresses:
            self._owners.pop(address, None)
        self._dirty_pods.update(self._pods_of_subjects())
        choices: ProfileChoices = {}
        for key in sorted(self._dirty_pods):
            self._settle(key, delta, choices)
        self._drop_unused(delta)
        peers: dict[str, PeerMatch | None] = {}
        for profile_key in self._uses:
            profile = self.profiles.get(profile_key)
            if profile is None or not self._dirty_rules.isdisjoint(_parts(profile_key)):
                self.profiles[profile_key] = self._make(profile_key, peers)
                delta.made.add(profile_key)
            elif changed := self._follow(profile, self._dirty_addresses, peers):
                delta.hosts[profile_key] = changed
                if profile.lost:
                    delta.lost[profile_key], profile.lost = profile.lost, set()
        self._dirty_pods.clear()
        self._dirty_subjects.clear()
        self._dirty_rules.clear()
        self._dirty_addresses.clear()
        return delta

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

    def _follow(self, profile: Profile, addresses: Iterable[str], peers: dict[str, PeerMatch | None]) -> set[str]:
        """Updates addresses in a profile; returns the addresses whose entry changed."""
        changed = set()
        for address in addresses:
            if profile.follow(self._known(address, peers), address):
                changed.add(address)
        return changed

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
        subjects = self._selected_by[key] = frozenset(self._by_subject.keys() & matching)
        choice = choices.get((subjects, ports))
        if choice is None:
            selecting = [self._policies[policy] for subject in subjects for policy in self._by_subject[subject]]
            ingress, egress = (self._key(direction, selecting, ports) for direction in DIRECTIONS)
            choice = choices[subjects, ports] = (ingress, egress)
        return PodProfiles(addresses=pod.addresses, ingress=choice[0], egress=choice[1])

    def _key(self, direction: str, about: Iterable[CompiledPolicy], ports: tuple[NamedPort, ...]) -> ProfileKey | None:
        concerned = [policy for policy in about if direction in policy.rules]
        selecting = sorted((policy for policy in concerned if policy.tier == "Namespace"), key=lambda each: each.key)
        isolating = [policy for policy in selecting if not policy.audit]
        audited = [policy for policy in selecting if policy.audit]
        cluster = [policy for policy in concerned if policy.tier != "Namespace" and policy.rules[direction]]
        cluster.sort(key=lambda policy: (policy.tier != "Admin", policy.priority, policy.key))
        if not selecting and not cluster:
            return None
        names = frozenset().union(*(policy.names[direction] for policy in concerned))
        return ProfileKey(
            direction=direction,
            policies=tuple(policy.key for policy in isolating),
            audited=tuple(policy.key for policy in audited),
            log=_logged(isolating or audited),
            cluster_policies=tuple(policy.key for policy in cluster),
            named=tuple(sorted(port for port in ports if port[0] in names)) if direction == INGRESS else (),
            own_node_egress=self._own_node_egress,
        )

    def _make(self, key: ProfileKey, peers: dict[str, PeerMatch | None]) -> Profile:
        cluster = [self._policies["Cluster", name] for name in key.cluster_policies]
        admin = [policy for policy in cluster if policy.tier == "Admin"]
        baseline = [policy for policy in cluster if policy.tier == "Baseline"]
        isolating = [self._policies["Namespace", name] for name in (*key.policies, *key.audited)]
        rules = (rule for policy in (*admin, *isolating, *baseline) for rule in policy.rules[key.direction])
        profile = Profile(key, tuple(rules))
        self._fill(profile, peers)
        return profile

    def _fill(self, profile: Profile, peers: dict[str, PeerMatch | None]) -> None:
        """Adds all addresses to a new profile; without blocks, pods with the same labels and ports share one table."""
        tables: dict[object, PortTable | None] = {}
        by_address = bool(profile.blocks[4].intervals or profile.blocks[6].intervals)
        by_name = profile.by_name
        for address in self._at:
            owner = self._owners.get(address) or self._owner(address)
            key: object = address if by_address or owner is None else owner if by_name else owner[0]
            if key not in tables:
                shared_key = key
                if owner is not None and not by_address:
                    shared_key = (self._index.numbers(owner[0]), by_name and owner[1])
                if shared_key not in tables:
                    tables[shared_key] = profile.table(self._known(address, peers))
                tables[key] = tables[shared_key]
            table = tables[key]
            if table is not None:
                profile.hosts[address] = table
        for address in self._node_at.keys() - self._at.keys():
            profile.follow(self._known(address, peers), address)
        profile.lost.clear()

    def _known(self, address: str, peers: dict[str, PeerMatch | None]) -> PeerMatch | None:
        """The result of :meth:`peer`, computed once for all profiles of a flush."""
        if address not in peers:
            peers[address] = self.peer(address)
        return peers[address]

    def own_addresses(self) -> frozenset[str]:
        """The addresses of this compiler's node that policies match."""
        return frozenset(_addresses(self._nodes.get(self.node)))

    def addresses(self) -> set[str]:
        """All addresses of pods and nodes."""
        return {*self._at, *self._node_at}

    def party(self, address: str) -> Party:
        """The pod or node that owns an address, as an end of a connection."""
        keys = self._at.get(address)
        if keys:
            pod = max((self._pods[key] for key in keys), key=precedence)
            return Party(address=address, node=pod.spec.node_name, pod=pod)
        name = self._node_at.get(address, "")
        known = pod_side_addresses(self._nodes[name]).get(address, ()) if name else ()
        return Party(address=address, node=name, node_addresses=known)

    def peer(self, address: str) -> PeerMatch | None:
        """The selectors, named ports and node that match an address; None: no pod or node owns it."""
        owner = self._owner(address)
        if owner is not None:
            match, named = owner
            return PeerMatch(address=address, selectors=self._index.numbers(match), named=named)
        name = self._node_at.get(address)
        if name is None:
            return None
        node = self._nodes[name]
        labels, known = node.metadata.labels, pod_side_addresses(node).get(address, ())
        matching = (text for text in self._node_selectors() if node_selector(text).matches(labels))
        return PeerMatch(address=address, nodes=frozenset(matching), own_node=name == self.node, node_addresses=known)

    def _owner(self, address: str) -> tuple[SelectorMatches, tuple[NamedPort, ...]] | None:
        """Labels and named ports of the pod behind an address; remembered until the address is touched."""
        owner = self._owners.get(address)
        if owner is None and (keys := self._at.get(address)):
            pod = max((self._pods[key] for key in keys), key=precedence)
            match = self._index.match(pod.metadata.namespace, pod.metadata.labels)
            owner = self._owners[address] = (match, named_ports(pod.declared_ports))
        return owner

    def _node_selectors(self) -> set[str]:
        cluster = (policy for (kind, _), policy in self._policies.items() if kind == "Cluster")
        return {text for policy in cluster for rules in policy.rules.values() for rule in rules for text in rule.nodes}


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


def _logged(isolating: Iterable[CompiledPolicy]) -> str:
    """The log setting for denials because no rule of these policies allows; ``none`` only if all of them have it."""
    settings = {policy.log for policy in isolating}
    return NONE if settings == {NONE} else DROPS if settings & {ALL, DROPS} else ""


def _addresses(node: Node | None) -> tuple[str, ...]:
    """All addresses that a node owns."""
    return (*node.addresses, *pod_side_addresses(node)) if node is not None else ()


def _parts(key: ProfileKey) -> frozenset[tuple[str, str, str]]:
    """The policies of a profile, with its direction."""
    return frozenset(("Namespace", name, key.direction) for name in (*key.policies, *key.audited)).union(
        ("Cluster", name, key.direction) for name in key.cluster_policies
    )
