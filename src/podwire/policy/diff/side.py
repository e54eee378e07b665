"""One of two clusters that are compared: the verdict of its policies for each pair of ends (pure).

An end is a pod, a node or an address. The properties of an end that rules can match are its :class:`PeerTraits`. Rules
treat ends with equal traits in the same way, so the work grows with the number of different traits, not with the number
of ends.
"""

from collections.abc import Iterable, Iterator

import msgspec

from podwire.cluster.world import World
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import (
    ClusterEgressRule,
    ClusterIngressRule,
    ClusterNetworkPolicy,
    EgressRule,
    IngressRule,
    NetworkPolicy,
)
from podwire.model.selector import LabelSelector
from podwire.policy.blocks import Blocks
from podwire.policy.compiled import CompiledPolicy, NamedPort, named_ports
from podwire.policy.ports import PortTable, PortTableBuilder
from podwire.policy.profile import PeerMatch, Profile, ProfileKey
from podwire.policy.profilerules import NO_POLICY
from podwire.policy.rules import INGRESS, cluster_network_policy, network_policy, node_selector
from podwire.policy.selectors import SelectorIndex


class PeerTraits(msgspec.Struct, frozen=True, gc=False):
    """The properties of an end that rules can match."""

    selectors: frozenset[int] = frozenset()
    """The selectors of pods that match the end."""
    named: tuple[NamedPort, ...] = ()
    """The end's named ports whose names appear in policies."""
    nodes: frozenset[str] = frozenset()
    """The selectors of nodes, in their JSON form, that match the end."""
    holding: frozenset[int] = frozenset()
    """The blocks that contain the end's address."""


class AppliedPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policies that apply to pods in one direction."""

    direction: str
    policies: tuple[str, ...] = ()
    """Keys of the NetworkPolicies that select the pods, in order; empty: the pods are not isolated."""
    cluster_policies: tuple[str, ...] = ()
    """Names in the order of evaluation."""
    named: tuple[NamedPort, ...] = ()
    """The pods' own ports that policies name; ingress only."""
    own_node_egress: bool = True


class Side:
    """The policies of one cluster; policies in audit are left out, because they are not in force."""

    def __init__(self, world: World, *, own_node_egress: bool = True) -> None:
        self.world = world
        self._own_node_egress = own_node_egress
        self._labels: dict[str, dict[str, str]] = {}
        self._label_names = frozenset(
            term.key for selector in _selectors(world) for term in selector.requirements().requirements
        )
        self._index = SelectorIndex(self.labels_of)
        compiled = [network_policy(policy, self._index) for policy in world.policies]
        compiled += [cluster_network_policy(policy, self._index) for policy in world.cluster_policies]
        self._policies = [policy for policy in compiled if not policy.audit]
        self.written: dict[str, NetworkPolicy | ClusterNetworkPolicy] = {}
        for plain in world.policies:
            self.written[key_of(plain.metadata)] = plain
        for cluster in world.cluster_policies:
            self.written[key_of(cluster.metadata)] = cluster
        """The policies by key."""
        rules = [
            rule for policy in self._policies for direction_rules in policy.rules.values() for rule in direction_rules
        ]
        self._names = frozenset(name for rule in rules for name, _ in rule.names)
        self._nodes = sorted({text for rule in rules for text in rule.nodes})
        self.ranges = tuple(dict.fromkeys(block for rule in rules for block in rule.blocks))
        """The blocks of all rules, each once."""
        self._blocks = {family: Blocks(enumerate(self.ranges), family) for family in (4, 6)}
        self._about: dict[int, list[CompiledPolicy]] = {}
        for policy in self._policies:
            self._about.setdefault(policy.subject, []).append(policy)
        self._profiles: dict[AppliedPolicies, Profile] = {}
        self._keys: dict[tuple[PeerTraits, str], AppliedPolicies | None] = {}
        self._tables: dict[tuple[AppliedPolicies, PeerTraits, bool], PortTable] = {}
        self.open = PortTableBuilder().table(rest=NO_POLICY)
        """The table that allows everything: no policy applies."""

    def labels_of(self, namespace: str) -> dict[str, str]:
        """The labels of a namespace."""
        cached = self._labels.get(namespace)
        if cached is None:
            cached = self._labels[namespace] = self.world.labels_of(namespace)
        return cached

    def of_pod(self, pod: Pod, address: str) -> PeerTraits:
        """The traits of a pod at one of its addresses."""
        labels = {key: value for key, value in pod.metadata.labels.items() if key in self._label_names}
        matching = self._index.matching(pod.metadata.namespace, labels)
        named = tuple(sorted(port for port in named_ports(pod.declared_ports) if port[0] in self._names))
        return PeerTraits(matching, named, frozenset(), self._holding(address))

    def of_node(self, node: Node, address: str) -> PeerTraits:
        """The traits of a node at one of its addresses."""
        matching = (text for text in self._nodes if node_selector(text).matches(node.metadata.labels))
        return PeerTraits(frozenset(), (), frozenset(matching), self._holding(address))

    def of_address(self, address: str) -> PeerTraits:
        """The traits of an address that is neither a pod's nor a node's."""
        return PeerTraits(frozenset(), (), frozenset(), self._holding(address))

    def _holding(self, address: str) -> frozenset[int]:
        return self._blocks[6 if ":" in address else 4].holding(address)

    def table(
        self, key: AppliedPolicies | None, peer: PeerTraits, address: str, *, own_node: bool = False
    ) -> PortTable:
        """The ruling on each port for a peer with an address, by the policies that ``key`` stands for."""
        if key is None or (own_node and key.direction == INGRESS):
            return self.open
        cache_key = (key, peer, own_node)
        cached = self._tables.get(cache_key)
        if cached is None:
            peer_match = PeerMatch(
                address=address, selectors=peer.selectors, named=peer.named, nodes=peer.nodes, own_node=own_node
            )
            profile = self._profiles[key]
            cached = self._tables[cache_key] = profile.table(peer_match) or profile.at(address)
        return cached

    def key(self, subject: PeerTraits, direction: str) -> AppliedPolicies | None:
        """The key of the policies that apply to a pod in a direction; None: no policy applies."""
        cache_key = (subject, direction)
        if cache_key not in self._keys:
            subjects = self._about.keys() & subject.selectors
            about = (policy for number in subjects for policy in self._about[number])
            self._keys[cache_key] = self._profile(direction, about, subject.named)
        return self._keys[cache_key]

    def _profile(
        self, direction: str, about: Iterable[CompiledPolicy], named: tuple[NamedPort, ...]
    ) -> AppliedPolicies | None:
        concerned = [policy for policy in about if direction in policy.rules]
        isolating = sorted(
            (policy for policy in concerned if policy.tier == "Namespace"), key=lambda policy: policy.key
        )
        cluster = [policy for policy in concerned if policy.tier != "Namespace" and policy.rules[direction]]
        cluster.sort(key=lambda policy: (policy.priority, policy.key))
        if not isolating and not cluster:
            return None
        admin = [policy for policy in cluster if policy.tier == "Admin"]
        baseline = [policy for policy in cluster if policy.tier == "Baseline"]
        key = AppliedPolicies(
            direction=direction,
            policies=tuple(policy.key for policy in isolating),
            cluster_policies=tuple(policy.key for policy in (*admin, *baseline)),
            named=named if direction == INGRESS else (),
            own_node_egress=self._own_node_egress,
        )
        if key not in self._profiles:
            profile_key = ProfileKey(direction=direction, named=key.named, own_node_egress=key.own_node_egress)
            self._profiles[key] = Profile(profile_key, (*isolating, *cluster))
        return key


def _selectors(world: World) -> Iterator[LabelSelector]:
    """Every selector of pods."""
    for policy in world.policies:
        yield policy.spec.pod_selector
        rules: tuple[IngressRule | EgressRule, ...] = (*policy.spec.ingress, *policy.spec.egress)
        yield from (peer.pod_selector for rule in rules for peer in rule.peers if peer.pod_selector is not None)
    for cluster in world.cluster_policies:
        spec = cluster.spec
        if spec.subject.pods is not None:
            yield spec.subject.pods.pod_selector
        cluster_rules: tuple[ClusterIngressRule | ClusterEgressRule, ...] = (*spec.ingress, *spec.egress)
        yield from (peer.pods.pod_selector for rule in cluster_rules for peer in rule.peers if peer.pods is not None)
