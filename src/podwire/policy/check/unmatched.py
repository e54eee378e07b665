"""Findings about selectors that match nothing, or only pods to which no policy applies (pure)."""

from collections.abc import Iterator, Sequence

from podwire.model.pod import Pod
from podwire.model.selector import LabelSelector
from podwire.model.wording import count
from podwire.policy.check.context import ClusterIndex, PodGroup
from podwire.policy.check.finding import NOTE, WARNING, Finding
from podwire.policy.check.mismatch import LabelSet, explain_mismatch, is_similar
from podwire.policy.check.outline import PeerOutline, PolicyOutline
from podwire.policy.check.phrases import first_names, first_pods
from podwire.policy.check.scope import NAME_LABEL
from podwire.policy.selectors import PodSelector

_BUILT_IN = ("kube-system", "kube-public", "default")
"""Namespaces that every cluster has, even if the files do not define them."""


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about the subjects and peers of all policies."""
    reported: set[str] = set()
    for policy in index.policies:
        unknown = _unknown(index, policy.subject)
        if unknown and unknown not in reported:
            reported.add(unknown)
            yield policy.finding("not-checked", policy.subject_path, unknown)
        if not unknown:
            yield from _subject(index, policy)
        for rule in policy.rules:
            for peer in rule.peers:
                yield from _peer(index, policy, peer)
                if peer.nodes is not None:
                    yield from _nodes(index, policy, peer)


def _unknown(index: ClusterIndex, selector: PodSelector) -> str:
    """Which objects are missing in the files to check a selector, as a sentence; empty when none is missing."""
    if index.knows_pods(selector) or index.among(index.excluded, selector):
        return ""
    names = index.namespaces_of(selector)
    if not names:
        return "the files have no namespace that this selector matches: it is not checked"
    return f"the files have no pods of namespace {first_names(names)}: selectors of its pods are not checked"


def _subject(index: ClusterIndex, policy: PolicyOutline) -> Iterator[Finding]:
    groups = index.matching(policy.subject)
    excluded = _of(index.among(index.excluded, policy.subject))
    on_node = [pod for pod in excluded if pod.spec.host_network and not pod.finished]
    if groups and on_node and (policy.subject.namespace or policy.subject.pods != LabelSelector()):
        text = f"it does not apply to pods that use their node's network: {first_pods(on_node)}"
        yield policy.finding("host-network-partly", policy.subject_path, text)
    if groups:
        return
    if on_node:
        text = (
            f"it selects only pods that use their node's network ({first_pods(on_node)}), and policies do not apply to "
            "them: nothing is isolated"
        )
        yield policy.finding("host-network-only", policy.subject_path, text)
        return
    if excluded:
        text = f"it selects only pods that ended ({first_pods(excluded)}): nothing is isolated"
        yield policy.finding("host-network-only", policy.subject_path, text)
        return
    selector = policy.subject
    reason = _reason(index, selector)
    operated = _hint_of_operators(index, selector)
    text = f"it selects no pod, so it has no effect: {reason}{operated}"
    hint = bool(operated) or selector.pods == LabelSelector()
    yield policy.finding("selects-nothing", policy.subject_path, text, NOTE if hint else WARNING)


def _of(groups: Sequence[PodGroup]) -> list[Pod]:
    return [pod for group in groups for pod in group.pods]


def _reason(index: ClusterIndex, selector: PodSelector) -> str:
    """Why a selector of pods in known namespaces matches none."""
    names = index.namespaces_of(selector)
    if not names:
        return explain_mismatch(selector.namespaces, _labels(index), "namespace")
    where = f" of namespace {first_names(names)}" if len(names) == 1 else " of these namespaces"
    things = [(group.labels, len(group.pods)) for name in names for group in index.groups.get(name, ())]
    if not things:
        return f"namespace {first_names(names)} has no pods"
    return explain_mismatch(selector.pods, things, "pod", where)


def _hint_of_operators(index: ClusterIndex, selector: PodSelector) -> str:
    """The end of a sentence about custom resources whose pods the files do not have; empty when there are none.

    A selector that looks like a misspelling of labels in the files is not meant for such pods.
    """
    names = index.namespaces_of(selector)
    resources = [resource for name in names for resource in index.details.operated.get(name, ())]
    known = [(group.labels, len(group.pods)) for name in names for group in index.groups.get(name, ())]
    if not resources or is_similar(selector.pods, known):
        return ""
    return f"; an operator may make such pods for {first_names(resources)}"


def _labels(index: ClusterIndex) -> list[LabelSet]:
    return [(labels, 1) for labels in index.namespaces.values()]


def _peer(index: ClusterIndex, policy: PolicyOutline, peer: PeerOutline) -> Iterator[Finding]:
    selector = peer.pods
    if selector is None or index.matching(selector):
        return
    excluded = _of(index.among(index.excluded, selector))
    if excluded:
        yield policy.finding("host-network-only", peer.pods_path, _of_excluded(excluded))
    elif not selector.namespace and not index.namespaces_of(selector):
        yield from _namespaces(index, policy, peer, selector.namespaces)
    elif index.knows_pods(selector):
        yield _no_pods(index, policy, peer, selector)


def _of_excluded(pods: Sequence[Pod]) -> str:
    on_node = [pod for pod in pods if pod.spec.host_network and not pod.finished]
    if on_node:
        return (
            f"only pods that use their node's network match ({first_pods(on_node)}), and selectors do not match such "
            "pods: it allows nothing. Write an ipBlock with the address of the node"
        )
    return f"only pods that ended match ({first_pods(pods)}): it allows nothing"


def _no_pods(index: ClusterIndex, policy: PolicyOutline, peer: PeerOutline, selector: PodSelector) -> Finding:
    """A finding about a peer whose namespaces exist but which matches no pod."""
    elsewhere = index.pods(PodSelector(pods=selector.pods)) if selector.namespace else ()
    if elsewhere and selector.pods != LabelSelector():
        names = sorted({pod.metadata.namespace for pod in elsewhere})
        text = (
            f"a podSelector without namespaceSelector means pods of namespace {selector.namespace}, where no pod "
            f"matches; {count(len(elsewhere), 'pod')} of namespace {first_names(names)} would. Add a "
            f"namespaceSelector to the same item, such as matchLabels: {{{NAME_LABEL}: {names[0]}}}"
        )
        return policy.finding("own-namespace-only", peer.pods_path, text)
    operated = _hint_of_operators(index, selector)
    severity = NOTE if operated or selector.pods == LabelSelector() else WARNING
    text = f"it matches no pod: {_reason(index, selector)}{operated}"
    return policy.finding("peer-matches-nothing", peer.pods_path, text, severity)


def _namespaces(
    index: ClusterIndex, policy: PolicyOutline, peer: PeerOutline, selector: LabelSelector
) -> Iterator[Finding]:
    """A finding about a peer whose namespaces do not exist."""
    keys = {term.key for term in selector.requirements().requirements if term.operator == "In"}
    known = {key for name in index.with_object for key in index.namespaces[name]}
    reason = explain_mismatch(selector, _labels(index), "namespace")
    advice = ""
    if "name" in keys and "name" not in known:
        advice = f". Every namespace has the label {NAME_LABEL}; Kubernetes sets no label called name"
    if index.details.complete or advice:
        yield policy.finding("peer-matches-nothing", peer.namespaces_path, f"it matches no pod: {reason}{advice}")
    elif selector.match_labels.get(NAME_LABEL) in _BUILT_IN:
        return
    elif is_similar(selector, _labels(index)):
        text = f"it matches no namespace of the files: {reason}"
        yield policy.finding("peer-matches-nothing", peer.namespaces_path, text)
    else:
        text = f"it matches no namespace of the files ({selector.requirements()}): whether it exists is not checked"
        yield policy.finding("not-checked", peer.namespaces_path, text)


def _nodes(index: ClusterIndex, policy: PolicyOutline, peer: PeerOutline) -> Iterator[Finding]:
    """A finding about a peer of nodes that matches none."""
    assert peer.nodes is not None
    nodes = index.world.nodes
    if any(peer.nodes.matches(node.metadata.labels) for node in nodes):
        return
    if index.details.complete or not index.details.assumed_addresses:
        reason = explain_mismatch(peer.nodes, [(node.metadata.labels, 1) for node in nodes], "node")
        yield policy.finding("peer-matches-nothing", f"{peer.path}.nodes", f"it matches no node: {reason}")
