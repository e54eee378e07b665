"""Does a term match: node selectors, taints, pods in a topology domain. Pure.

Source: ``k8s.io/component-helpers/scheduling/corev1``.
"""

from collections.abc import Iterable, Sequence

from podwire.embedded.scheduler.usage import NodeUsage, SchedulerState
from podwire.model.node import Node, Taint
from podwire.model.pod import NodeSelector, NodeSelectorTerm, Pod, PodAffinityTerm, Toleration


def node_term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether a node satisfies every expression; an empty term matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(one.matches(node.metadata.labels) for one in term.match_expressions) and all(
        one.matches(fields) for one in term.match_fields
    )


def node_selected(selector: NodeSelector | None, node: Node) -> bool:
    """Whether one term matches; no selector matches everything."""
    return selector is None or any(node_term_matches(term, node) for term in selector.node_selector_terms)


def node_wanted(pod: Pod, node: Node) -> bool:
    """Whether a node satisfies the pod's nodeSelector and required node affinity."""
    if not pod.spec.node_selector.items() <= node.metadata.labels.items():
        return False
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    return node_selected(affinity.node_affinity.required, node)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers a taint."""
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
        if taint.effect in effects and not any(tolerates(one, taint) for one in tolerations):
            return taint
    return None


def affine_namespaces(term: PodAffinityTerm, own: str, state: SchedulerState) -> frozenset[str] | None:
    """The namespaces that a term looks at; None for all."""
    if term.namespace_selector is None:
        return frozenset(term.namespaces or (own,))
    selector = term.namespace_selector
    if not selector.match_labels and not selector.match_expressions:
        return None
    chosen = {name for name, labels in state.namespaces.items() if selector.matches(labels)}
    return frozenset(chosen | set(term.namespaces))


def term_selects(term: PodAffinityTerm, namespaces: frozenset[str] | None, other: Pod) -> bool:
    """Whether the term selects another pod."""
    if namespaces is not None and other.metadata.namespace not in namespaces:
        return False
    return term.label_selector is not None and term.label_selector.matches(other.metadata.labels)


def domains(term: PodAffinityTerm, own: str, state: SchedulerState) -> set[str]:
    """The values of the term's topology key on nodes that run a selected pod."""
    namespaces = affine_namespaces(term, own, state)
    found: set[str] = set()
    for node in state.nodes.values():
        value = node.labels.get(term.topology_key)
        if value is None or value in found:
            continue
        if any(term_selects(term, namespaces, other.pod) for other in node.pods.values()):
            found.add(value)
    return found


def in_domain(node: NodeUsage, key: str, values: set[str]) -> bool:
    """Whether the node lies in one of the domains."""
    return node.labels.get(key) in values
