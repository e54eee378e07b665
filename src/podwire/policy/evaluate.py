"""The verdict on one connection, computed directly from the API objects (pure).

This is the reference: every other implementation is compared with it. It is written to be read and caches nothing, so
the cost of a verdict grows with the number of policies and pods. A connection passes when the egress of the source and
the ingress of the destination both allow it. Each direction is decided by the tiers, in this order::

    Admin       cluster policies by priority and name, rules in order: Accept and Deny end here, Pass leaves the tier
    Namespace   NetworkPolicies that select the pod: if there is one, traffic that no rule allows is denied
    Baseline    cluster policies as in Admin
                allowed

A policy with the annotation ``podwire.io/mode: audit`` is not in force: the verdict is as if it did not exist. If the
policies in audit would deny an allowed connection, the verdict names them.

No policy changes that a pod reaches itself and that a node reaches its own pods. The API leaves open whether
NetworkPolicies apply to what a pod sends to its own node: ``EvaluationOptions.own_node_egress`` decides. Cluster
policies always apply there.
Sources: NetworkPolicy of Kubernetes 1.36, ClusterNetworkPolicy v1alpha2.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.pod import Pod
from podwire.model.policy import (
    ClusterEgressRule,
    ClusterIngressRule,
    ClusterNetworkPolicy,
    ClusterSubject,
    EgressRule,
    IngressRule,
    NetworkPolicy,
)
from podwire.policy.annotations import in_audit
from podwire.policy.connectionmatch import Connection, ConnectionMatcher

INGRESS, EGRESS = "Ingress", "Egress"


class EvaluationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for behaviour that the API does not define."""

    own_node_egress: bool = True
    """Whether a pod reaches its own node independently of NetworkPolicies."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one direction, and the policy and rule that decided."""

    direction: str
    allowed: bool
    tier: str
    """Admin, Namespace, Baseline; empty: no policy applies."""
    policy: str = ""
    """The key of the policy whose rule decided; empty for a denial because no rule allows."""
    rule: int = -1
    """The index of that rule in its list."""
    isolated_by: tuple[str, ...] = ()
    """The NetworkPolicies that select the pod for this direction, in the order of their names."""
    reason: str = ""
    """Why no policy applies; empty when a policy decided."""
    audit: tuple[str, ...] = ()
    """The policies in audit that would make this a denial."""
    audit_rule: int = -1
    """The index of the rule in audit; -1: the denial is because no rule allows."""


class ConnectionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions for both directions; the connection passes when both allow it."""

    egress: Decision
    ingress: Decision

    @property
    def allowed(self) -> bool:
        """Whether the connection passes."""
        return self.egress.allowed and self.ingress.allowed


def evaluate(world: World, connection: Connection, rules: EvaluationOptions | None = None) -> ConnectionVerdict:
    """The verdict on a connection."""
    return ConnectionVerdict(
        egress=decide(world, connection, EGRESS, rules or EvaluationOptions()),
        ingress=decide(world, connection, INGRESS, rules or EvaluationOptions()),
    )


def decide(world: World, connection: Connection, direction: str, rules: EvaluationOptions) -> Decision:
    """The decision for one direction."""
    subject, peer = ends(connection, direction)
    if reason := _exempt(subject, peer, direction):
        return Decision(direction=direction, allowed=True, tier="", reason=reason)
    assert subject.pod is not None, "everything else is exempt"
    exempt = rules.own_node_egress and own_node(subject, peer)
    held = DirectionCase(world, connection, direction, subject.pod, peer).decide(own_node=exempt)
    if not held.allowed or not (any(map(audits, world.policies)) or any(map(audits, world.cluster_policies))):
        return held
    whole = DirectionCase(world, connection, direction, subject.pod, peer, audited=True)
    audit, rule = whole.audit(whole.decide(own_node=exempt))
    return replace(held, audit=audit, audit_rule=rule)


def ends(connection: Connection, direction: str) -> tuple[Party, Party]:
    """The end whose policies decide, and the other end."""
    if direction == INGRESS:
        return connection.destination, connection.source
    return connection.source, connection.destination


def _exempt(subject: Party, peer: Party, direction: str) -> str:
    """Why policies do not apply; empty when they do."""
    if subject.pod is None:
        return "not a pod, and policies select only pods"
    if peer.pod is not None and key_of(peer.pod.metadata) == key_of(subject.pod.metadata):
        return "a pod reaches itself"
    if direction == INGRESS and own_node(subject, peer):
        return "the pod's own node reaches it"
    return ""


def own_node(subject: Party, peer: Party) -> bool:
    """Whether the peer is the node that the subject runs on."""
    return peer.pod is None and bool(peer.node) and peer.node == subject.node


class DirectionCase:
    """One direction of one connection, for the pod whose policies decide."""

    def __init__(
        self,
        world: World,
        connection: Connection,
        direction: str,
        pod: Pod,
        peer: Party,
        *,
        audited: bool = False,
    ) -> None:
        """``audited``: policies in audit count as in force; otherwise they are ignored."""
        self.world = world
        self.audited = audited
        self.connection = connection
        self.direction = direction
        self.pod = pod
        self.peer = peer
        self.namespace = pod.metadata.namespace
        self.matcher = ConnectionMatcher(world, connection, direction, peer)

    def decide(self, *, own_node: bool) -> Decision:
        """The decision of all tiers; with ``own_node``, NetworkPolicies are skipped."""
        if own_node:
            reason = "a pod reaches its own node"
            return self.cluster_tier("Admin") or self.cluster_tier("Baseline") or self.allowed(reason)
        decision = self.cluster_tier("Admin") or self.namespace_tier() or self.cluster_tier("Baseline")
        return decision or self.allowed(self.reason_without_policy())

    def audit(self, decided: Decision) -> tuple[tuple[str, ...], int]:
        """The policies in audit that cause a denial, and the index of their rule; none when the decision allows."""
        if decided.allowed:
            return (), -1
        isolating = self.isolating() if not decided.policy else ()
        if isolating and all(map(audits, isolating)):
            return decided.isolated_by, -1
        if decided.policy in {policy.metadata.name for policy in self.world.cluster_policies if audits(policy)}:
            return (decided.policy,), decided.rule
        passing = self.first("Admin")
        assert passing is not None, "only a Pass rule in audit can skip a rule in force that accepts"
        return (passing[0].metadata.name,), passing[1]

    def counts(self, policy: NetworkPolicy | ClusterNetworkPolicy) -> bool:
        """Whether a policy is evaluated."""
        return self.audited or not audits(policy)

    def allowed(self, reason: str) -> Decision:
        """The decision when no policy applies: allowed."""
        return Decision(direction=self.direction, allowed=True, tier="", reason=reason)

    def reason_without_policy(self) -> str:
        """Why no policy applies, as text."""
        cluster = ", ".join(policy.metadata.name for tier in ("Admin", "Baseline") for policy in self.in_order(tier))
        subject = key_of(self.pod.metadata)
        if not cluster:
            return f"no policy selects {subject} for {self.direction.lower()}"
        return f"no {self.direction.lower()} rule of {cluster} matches, and no NetworkPolicy selects {subject}"

    def isolating(self) -> tuple[NetworkPolicy, ...]:
        """The NetworkPolicies that select the pod for this direction."""
        policies = (
            policy
            for policy in self.world.policies
            if policy.metadata.namespace == self.namespace
            and self.direction in policy.spec.types
            and self.counts(policy)
            and policy.spec.pod_selector.matches(self.pod.metadata.labels)
        )
        return tuple(sorted(policies, key=lambda policy: policy.metadata.name))

    def namespace_tier(self) -> Decision | None:
        """The decision by NetworkPolicies; None: none selects the pod."""
        policies = self.isolating()
        if not policies:
            return None
        names = tuple(key_of(policy.metadata) for policy in policies)
        for policy in policies:
            for index, rule in enumerate(policy_rules(policy, self.direction)):
                if self.matcher.peers_match(policy, rule.peers) and self.matcher.ports_match(rule.ports):
                    return Decision(
                        direction=self.direction,
                        allowed=True,
                        tier="Namespace",
                        policy=key_of(policy.metadata),
                        rule=index,
                        isolated_by=names,
                    )
        return Decision(direction=self.direction, allowed=False, tier="Namespace", isolated_by=names)

    def cluster_tier(self, tier: str) -> Decision | None:
        """The decision by cluster policies of one tier; None: the next tier decides."""
        match = self.first(tier)
        if match is None or match[2] == "Pass":
            return None
        policy, index, action = match
        allowed, name = action == "Accept", policy.metadata.name
        return Decision(direction=self.direction, allowed=allowed, tier=tier, policy=name, rule=index)

    def first(self, tier: str) -> tuple[ClusterNetworkPolicy, int, str] | None:
        """The first rule of a tier that matches the connection: its policy, its index, its action."""
        for policy in self.in_order(tier):
            for index, rule in enumerate(cluster_rules(policy, self.direction)):
                if action := self.action_of(rule):
                    return policy, index, action
        return None

    def in_order(self, tier: str) -> Iterator[ClusterNetworkPolicy]:
        """The cluster policies of a tier that select the pod, in order of evaluation."""
        policies = (policy for policy in self.world.cluster_policies if policy.spec.tier == tier)
        for policy in sorted(policies, key=lambda policy: (policy.spec.priority, policy.metadata.name)):
            if self.counts(policy) and self.subject_of(policy.spec.subject):
                yield policy

    def subject_of(self, subject: ClusterSubject) -> bool:
        """Whether the subject of a cluster policy selects the pod."""
        if subject.namespaces is not None:
            return self.matcher.in_namespaces(self.pod, subject.namespaces)
        return subject.pods is not None and self.matcher.in_pods(self.pod, subject.pods)

    def action_of(self, rule: ClusterIngressRule | ClusterEgressRule) -> str:
        """Accept, Deny or Pass; empty when the rule does not match this connection."""
        if not all(peer.known for peer in rule.peers) or not all(protocol.known for protocol in rule.protocols):
            return "" if rule.action == "Accept" else "Deny"
        if not any(self.matcher.cluster_peer_matches(peer) for peer in rule.peers):
            return ""
        if rule.protocols and not any(self.matcher.protocol_matches(protocol) for protocol in rule.protocols):
            return ""
        return rule.action


def audits(policy: NetworkPolicy | ClusterNetworkPolicy) -> bool:
    """Whether a policy is in audit."""
    return in_audit(policy.metadata.annotations)


def policy_rules(policy: NetworkPolicy, direction: str) -> tuple[IngressRule | EgressRule, ...]:
    """The rules of a direction."""
    if direction == INGRESS:
        return policy.spec.ingress
    return policy.spec.egress


def cluster_rules(policy: ClusterNetworkPolicy, direction: str) -> tuple[ClusterIngressRule | ClusterEgressRule, ...]:
    """The rules of a direction, in order."""
    if direction == INGRESS:
        return policy.spec.ingress
    return policy.spec.egress
