"""The verdict of policies on one direction of a connection, and its reasons (pure).

:mod:`podwire.policy.evaluate` gives the verdict; this module adds the rule, peers and ports that led to it. ``lines``
finds the line of a field in the user's files; without ``lines`` only the field is named. The cost is that of the
evaluator and of the nearest rule, which needs a look at each term of the isolating policies.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.policy import ClusterEgressRule, ClusterIngressRule, ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import (
    INGRESS,
    Decision,
    DirectionCase,
    EvaluationOptions,
    cluster_rules,
    decide,
    ends,
    own_node,
    policy_rules,
)
from podwire.why.answer import DirectionVerdict, NearestRule, PolicyReference, PolicyVerdict, RuleMatch, RuleTerm
from podwire.why.policies.lines import Lines, no_line
from podwire.why.policies.mismatch import RulePart, cluster_peer_text, protocol_text
from podwire.why.policies.nearest import RuleDistance, matching_parts, nearest, peers_word, rule_field
from podwire.why.policies.yamltext import yaml_text
from podwire.why.policy_text import one_line

_TIERS: tuple[Literal["Admin"], Literal["Baseline"]] = ("Admin", "Baseline")


def both_directions(connection: Connection, egress: DirectionVerdict, ingress: DirectionVerdict) -> PolicyVerdict:
    """The verdict on a connection from those of its two directions."""
    destination = connection.destination
    return PolicyVerdict(
        address=destination.address,
        port=connection.port,
        pod=key_of(destination.pod.metadata) if destination.pod is not None else "",
        outcome="allowed" if egress.allowed and ingress.allowed else "dropped",
        message=one_line(connection.protocol, connection.port, egress, ingress),
        egress=egress,
        ingress=ingress,
    )


def explain_direction(
    world: World, connection: Connection, direction: str, rules: EvaluationOptions | None = None, lines: Lines = no_line
) -> DirectionVerdict:
    """The verdict of policies on one direction of a connection."""
    rules = rules or EvaluationOptions()
    decision = decide(world, connection, direction, rules)
    subject, peer = ends(connection, direction)
    no_policy = _why_no_policy(subject, peer, direction, rules)
    if subject.pod is None or (no_policy and not decision.tier and no_policy != "OwnNode"):
        return _without_policies(decision, no_policy, subject, peer)
    explainer = _Explainer(DirectionCase(world, connection, direction, subject.pod, peer), lines)
    verdict = explainer.verdict(decision, no_policy)
    if not decision.audit:
        return verdict
    whole = DirectionCase(world, connection, direction, subject.pod, peer, audited=True)
    exempt = rules.own_node_egress and own_node(subject, peer)
    audit = _Explainer(whole, lines).verdict(whole.decide(own_node=exempt), no_policy)
    return msgspec.structs.replace(verdict, audit=audit, audited_by=decision.audit)


def _why_no_policy(subject: Party, peer: Party, direction: str, rules: EvaluationOptions) -> str:
    """The word for why no policy applies; empty: policies may apply."""
    if subject.pod is None:
        return "NoPod"
    if peer.pod is not None and key_of(peer.pod.metadata) == key_of(subject.pod.metadata):
        return "Itself"
    if own_node(subject, peer) and (direction == INGRESS or rules.own_node_egress):
        return "OwnNode"
    return ""


def _without_policies(decision: Decision, word: str, subject: Party, peer: Party) -> DirectionVerdict:
    return DirectionVerdict(
        direction="Ingress" if decision.direction == INGRESS else "Egress",
        subject=subject.name,
        peer=peer.name,
        node=subject.node,
        allowed=True,
        reason=word,
        message=decision.reason,
    )


class _Explainer:
    """One direction of one connection, for a pod."""

    def __init__(self, case: DirectionCase, lines: Lines) -> None:
        self.case = case
        self.lines = lines

    def verdict(self, decision: Decision, no_policy: str) -> DirectionVerdict:
        """The verdict with its rule, the isolating policies and the nearest rule."""
        subject, peer = ends(self.case.connection, self.case.direction)
        verdict = _without_policies(decision, no_policy or self._word(), subject, peer)
        passed = tuple(self._passed(decision))
        if not decision.tier:
            return msgspec.structs.replace(verdict, passed=passed)
        rule = self._rule(decision)
        nearest_rules = tuple(self._near()) if rule is None else ()
        isolated = tuple(map(self._named, self.case.isolating())) if decision.tier == "Namespace" else ()
        return msgspec.structs.replace(
            verdict,
            allowed=decision.allowed,
            tier=decision.tier,
            reason="Isolated" if rule is None else "Allowed" if decision.allowed else "Denied",
            message=_message(decision, rule, isolated, nearest_rules),
            rule=rule,
            isolated_by=isolated,
            passed=passed,
            nearest=nearest_rules,
        )

    def _word(self) -> str:
        """Why no policy applies to a connection that is not exempt."""
        cluster = any(True for tier in _TIERS for _ in self.case.in_order(tier))
        return "NotSpokenOf" if cluster else "NotSelected"

    def _passed(self, decision: Decision) -> Iterable[RuleMatch]:
        """The rules that passed the decision to the next tier, in the tiers before the deciding one."""
        for tier in _TIERS[:1] if decision.tier in ("Admin", "Namespace") else _TIERS:
            first = self.case.first(tier)
            if first is not None and first[2] == "Pass":
                yield self._cluster_rule(first[0], first[1])

    def _rule(self, decision: Decision) -> RuleMatch | None:
        """The rule that decided."""
        if not decision.policy:
            return None
        if decision.tier == "Namespace":
            policy = next(
                isolating for isolating in self.case.isolating() if key_of(isolating.metadata) == decision.policy
            )
            parts = matching_parts(
                self.case, policy, decision.rule, policy_rules(policy, self.case.direction)[decision.rule]
            )
            return self._plain_rule(policy, decision.rule, *parts)
        first = self.case.first("Admin" if decision.tier == "Admin" else "Baseline")
        assert first is not None, "a rule of the tier decided"
        return self._cluster_rule(first[0], first[1])

    def _plain_rule(self, policy: NetworkPolicy, index: int, peer: RulePart | None, port: RulePart | None) -> RuleMatch:
        key, field = key_of(policy.metadata), rule_field(self.case.direction, index)
        return RuleMatch(
            tier="Namespace",
            policy=key,
            field=field,
            rule=index,
            action="Accept",
            line=self.lines("NetworkPolicy", key, field),
            text=yaml_text(msgspec.to_builtins(policy_rules(policy, self.case.direction)[index])),
            peer=self._term("NetworkPolicy", key, peer),
            port=self._term("NetworkPolicy", key, port),
        )

    def _cluster_rule(self, policy: ClusterNetworkPolicy, index: int) -> RuleMatch:
        name, field = policy.metadata.name, rule_field(self.case.direction, index)
        rule = cluster_rules(policy, self.case.direction)[index]
        peer, port = self._cluster_parts(rule, field)
        return RuleMatch(
            tier="Admin" if policy.spec.tier == "Admin" else "Baseline",
            policy=name,
            field=field,
            rule=index,
            name=rule.name,
            action=_action(rule),
            line=self.lines("ClusterNetworkPolicy", name, field),
            text=yaml_text(msgspec.to_builtins(rule)),
            peer=self._term("ClusterNetworkPolicy", name, peer),
            port=self._term("ClusterNetworkPolicy", name, port),
        )

    def _cluster_parts(
        self, rule: ClusterIngressRule | ClusterEgressRule, field: str
    ) -> tuple[RulePart | None, RulePart | None]:
        """The first peer and the first protocol that match."""
        peers = (
            RulePart(f"{field}.{peers_word(self.case)}[{number}]", cluster_peer_text(peer))
            for number, peer in enumerate(rule.peers)
            if not peer.known or self.case.matcher.cluster_peer_matches(peer)
        )
        protocols = (
            RulePart(f"{field}.protocols[{number}]", protocol_text(protocol))
            for number, protocol in enumerate(rule.protocols)
            if not protocol.known or self.case.matcher.protocol_matches(protocol)
        )
        return next(peers, None), next(protocols, None)

    def _near(self) -> Iterable[NearestRule]:
        """The nearest rules of the policies that isolate the subject."""
        for near in nearest(self.case):
            rule = self._plain_rule(near.policy, near.rule_index, near.peer, near.port)
            yield NearestRule(rule=rule, misses=tuple(self._misses(near)))

    def _misses(self, near: RuleDistance) -> Iterable[RuleTerm]:
        key = key_of(near.policy.metadata)
        for miss in near.misses:
            line = self.lines("NetworkPolicy", key, miss.part.field)
            yield RuleTerm(field=miss.part.field, text=miss.part.text, line=line, found=miss.actual)

    def _term(self, kind: str, key: str, part: RulePart | None) -> RuleTerm | None:
        if part is None:
            return None
        return RuleTerm(field=part.field, text=part.text, line=self.lines(kind, key, part.field))

    def _named(self, policy: NetworkPolicy) -> PolicyReference:
        key = key_of(policy.metadata)
        return PolicyReference(policy=key, line=self.lines("NetworkPolicy", key, "spec.podSelector"))


def _action(rule: ClusterIngressRule | ClusterEgressRule) -> Literal["Accept", "Deny", "Pass"]:
    """The action of a rule; in a rule with an unknown part, every action but Accept counts as Deny."""
    if rule.action == "Accept":
        return "Accept"
    known = all(peer.known for peer in rule.peers) and all(protocol.known for protocol in rule.protocols)
    return "Pass" if rule.action == "Pass" and known else "Deny"


def _message(
    decision: Decision, rule: RuleMatch | None, isolated: tuple[PolicyReference, ...], near: tuple[NearestRule, ...]
) -> str:
    if rule is not None and decision.tier == "Namespace":
        return f"allowed by {rule}"
    if rule is not None:
        return f"{'accepted' if decision.allowed else 'denied'} by cluster policy {rule}, tier {rule.tier}"
    listed = ", ".join(map(str, isolated[:_LISTED])) + (", ..." if len(isolated) > _LISTED else "")
    direction = decision.direction.lower()
    if not near:
        return f"isolated by {listed}, and there is no {direction} rule"
    misses = " and ".join(f"{miss.text}, {miss.found}" for miss in near[0].misses)
    return f"isolated by {listed}; nearest rule {near[0].rule}: {misses}"


_LISTED = 3
"""The number of policies that a message names."""
