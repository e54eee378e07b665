"""Decides whether a node can take a pod; the reasons of refusals are Kubernetes' own messages. Pure.

The facts that depend only on the pod are computed once (:class:`PodConstraints`), so each node costs a few comparisons.
Source: ``k8s.io/kubernetes/pkg/scheduler/framework/plugins``, in the order of the default profile.
"""

from collections import Counter

import msgspec

from podwire.embedded.scheduler.matching import (
    affine_namespaces,
    domains,
    in_domain,
    node_matches,
    term_selects,
    untolerated,
)
from podwire.embedded.scheduler.usage import NodeUsage, PodDemand, SchedulerState
from podwire.model.hostports import CONFLICT, overlap
from podwire.model.node import Taint
from podwire.model.pod import PodAffinityTerm, TopologySpreadConstraint

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
HARD = ("NoSchedule", "NoExecute")


class NodeRefusal(msgspec.Struct, frozen=True):
    """Why a node cannot take a pod; ``movable``: the node could take the pod if other pods were deleted."""

    reasons: tuple[str, ...]
    movable: bool = False


class SpreadCounts(msgspec.Struct, frozen=True):
    """One hard spread constraint with the number of matching pods in each domain."""

    constraint: TopologySpreadConstraint
    counts: dict[str, int]
    least: int
    counts_itself: int


class PodConstraints(msgspec.Struct, frozen=True):
    """The constraints of a pod on every node."""

    demand: PodDemand
    affine: tuple[tuple[PodAffinityTerm, set[str]], ...]
    first_of_group: bool
    anti: tuple[tuple[PodAffinityTerm, set[str]], ...]
    repelled: frozenset[tuple[str, str]]
    spreads: tuple[SpreadCounts, ...]


def constraints_of(pod: PodDemand, state: SchedulerState) -> PodConstraints:
    """The constraints of ``pod``, given the pods that run now."""
    affinity = pod.pod.spec.affinity
    own = pod.pod.metadata.namespace
    terms = affinity.pod_affinity.required if affinity is not None and affinity.pod_affinity is not None else ()
    affine = tuple((term, domains(term, own, state)) for term in terms)
    # When no pod matches the terms, a pod that matches its own terms may start as the first of its group.
    selects_itself = all(term_selects(term, affine_namespaces(term, own, state), pod.pod) for term in terms)
    return PodConstraints(
        demand=pod,
        affine=affine,
        first_of_group=bool(terms) and selects_itself and not any(matching_domains for _, matching_domains in affine),
        anti=tuple((term, domains(term, own, state)) for term in pod.anti_affinity),
        repelled=_repelled(pod, state),
        spreads=tuple(
            _spread(pod, constraint, state)
            for constraint in pod.pod.spec.topology_spread_constraints
            if constraint.when_unsatisfiable == "DoNotSchedule"
        ),
    )


def refusal(constraints: PodConstraints, node: NodeUsage) -> NodeRefusal | None:
    """Why the node cannot take the pod; None when it can."""
    return _by_rules(constraints, node) or _by_resources(constraints, node) or _by_neighbours(constraints, node)


def _by_rules(constraints: PodConstraints, node: NodeUsage) -> NodeRefusal | None:
    pod, spec = constraints.demand.pod, node.node.spec
    if spec.unschedulable and untolerated(pod.spec.tolerations, (UNSCHEDULABLE,), HARD):
        return NodeRefusal(("node(s) were unschedulable",))
    taint = untolerated(pod.spec.tolerations, spec.taints, HARD) if spec.taints else None
    if taint is not None:
        return NodeRefusal((f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",))
    if not node_matches(pod, node.node):
        return NodeRefusal(("node(s) didn't match Pod's node affinity/selector",))
    return None


def _by_resources(constraints: PodConstraints, node: NodeUsage) -> NodeRefusal | None:
    ports = constraints.demand.host_ports
    if ports and any(overlap(ports, neighbour.host_ports) for neighbour in node.pods.values()):
        return NodeRefusal((CONFLICT,), movable=True)
    lacking: list[str] = []
    limit = node.allocatable.get("pods")
    if limit is not None and (len(node.pods) + 1) * 1000 > limit:
        lacking.append("Too many pods")
    for name, amount in constraints.demand.requests.items():
        if amount and node.used[name] + amount > node.allocatable.get(name, 0):
            lacking.append(f"Insufficient {name}")
    return NodeRefusal(tuple(lacking), movable=True) if lacking else None


def _by_neighbours(constraints: PodConstraints, node: NodeUsage) -> NodeRefusal | None:
    for spread in constraints.spreads:
        value = node.labels.get(spread.constraint.topology_key)
        if value is None:
            return NodeRefusal(("node(s) didn't match pod topology spread constraints (missing required label)",))
        if spread.counts.get(value, 0) + spread.counts_itself - spread.least > spread.constraint.max_skew:
            return NodeRefusal(("node(s) didn't match pod topology spread constraints",), movable=True)
    for term, term_domains in constraints.affine:
        has_key = term.topology_key in node.labels
        if not has_key or not (constraints.first_of_group or in_domain(node, term.topology_key, term_domains)):
            return NodeRefusal(("node(s) didn't match pod affinity rules",))
    for term, term_domains in constraints.anti:
        if in_domain(node, term.topology_key, term_domains):
            return NodeRefusal(("node(s) didn't match pod anti-affinity rules",), movable=True)
    if any(node.labels.get(key) == value for key, value in constraints.repelled):
        return NodeRefusal(("node(s) didn't satisfy existing pods anti-affinity rules",), movable=True)
    return None


def _repelled(pod: PodDemand, state: SchedulerState) -> frozenset[tuple[str, str]]:
    """The domains (key, value) from which the anti-affinity of running pods excludes this pod."""
    repelled: set[tuple[str, str]] = set()
    for node_name, neighbour in state.anti_affine.values():
        node = state.nodes.get(node_name)
        if node is None:
            continue
        for term in neighbour.anti_affinity:
            value = node.labels.get(term.topology_key)
            namespaces = affine_namespaces(term, neighbour.pod.metadata.namespace, state)
            if value is not None and term_selects(term, namespaces, pod.pod):
                repelled.add((term.topology_key, value))
    return frozenset(repelled)


def _spread(pod: PodDemand, constraint: TopologySpreadConstraint, state: SchedulerState) -> SpreadCounts:
    selector = constraint.label_selector
    counts: Counter[str] = Counter()
    for node in state.nodes.values():
        value = node.labels.get(constraint.topology_key)
        if value is None or not node_matches(pod.pod, node.node):
            continue
        counts[value] += sum(_counts(selector, pod, neighbour) for neighbour in node.pods.values())
    return SpreadCounts(
        constraint,
        dict(counts),
        min(counts.values(), default=0),
        int(selector is not None and selector.matches(pod.pod.metadata.labels)),
    )


def _counts(selector: object, pod: PodDemand, neighbour: PodDemand) -> bool:
    meta = neighbour.pod.metadata
    if selector is None or meta.namespace != pod.pod.metadata.namespace or meta.deletion_timestamp is not None:
        return False
    return bool(selector.matches(meta.labels))  # type: ignore[attr-defined]
