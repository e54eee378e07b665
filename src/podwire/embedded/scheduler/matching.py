"""Matches node selectors, taints, and pods in topology domains. Pure.

Source: ``k8s.io/component-helpers/scheduling/corev1``.
"""

from collections.abc import Iterable, Sequence

from podwire.embedded.scheduler.usage import NodeUsage, SchedulerState
from podwire.model.node import Node, Taint
from podwire.model.pod import NodeSelector, NodeSelectorTerm, Pod, PodAffinityTerm, Toleration


def node_term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether a node satisfies every expression of a term; an empty term matches no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(expression.matches(node.metadata.labels) for expression in term.match_expressions) and all(
        expression.matches(fields) for expression in term.match_fields
    )


def node_selected(selector: NodeSelector | None, node: Node) -> bool:
    """Whether at least one term matches a node; every node matches when there is no selector."""
    return selector is None or any(node_term_matches(term, node) for term in selector.node_selector_terms)


def node_matches(pod: Pod, node: Node) -> bool:
    """Whether a node satisfies the pod's nodeSelector and required node affinity."""
    if not pod.spec.node_selector.items() <= node.metadata.labels.items():
        return False
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    return node_selected(affinity.node_affinity.required, node)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def untolerated(tolerations: Sequence[Toleration], taints: Iterable[Taint], effects: Sequence[str]) -> Taint | None:
    """The first taint with one of the effects that no toleration covers."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def affine_namespaces(term: PodAffinityTerm, own: str, state: SchedulerState) -> frozenset[str] | None:
    """The namespaces of a term; None for all namespaces."""
    if term.namespace_selector is None:
        return frozenset(term.namespaces or (own,))
    selector = term.namespace_selector
    if not selector.match_labels and not selector.match_expressions:
        return None
    chosen = {name for name, labels in state.namespaces.items() if selector.matches(labels)}
    return frozenset(chosen | set(term.namespaces))


def term_selects(term: PodAffinityTerm, namespaces: frozenset[str] | None, candidate: Pod) -> bool:
    """Whether a term with these namespaces selects a pod."""
    if namespaces is not None and candidate.metadata.namespace not in namespaces:
        return False
    return term.label_selector is not None and term.label_selector.matches(candidate.metadata.labels)


def domains(term: PodAffinityTerm, own: str, state: SchedulerState) -> set[str]:
    """The values of the term's topology key on nodes that run a selected pod."""
    namespaces = affine_namespaces(term, own, state)
    values: set[str] = set()
    for node in state.nodes.values():
        value = node.labels.get(term.topology_key)
        if value is None or value in values:
            continue
        if any(term_selects(term, namespaces, neighbour.pod) for neighbour in node.pods.values()):
            values.add(value)
    return values


def in_domain(node: NodeUsage, key: str, values: set[str]) -> bool:
    """Whether the node lies in one of the domains."""
    return node.labels.get(key) in values
