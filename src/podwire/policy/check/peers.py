"""Findings about peers that are two items, of which either matches, where one item was probably meant (pure)."""

from collections.abc import Iterator
from itertools import pairwise

from podwire.model.selector import LabelSelector
from podwire.model.wording import count
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import NOTE, WARNING, Finding
from podwire.policy.check.outline import PeerOutline, PolicyOutline, RuleOutline
from podwire.policy.selectors import PodSelector


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about neighbouring peers of all NetworkPolicies."""
    for policy in index.policies:
        if policy.kind == "NetworkPolicy":
            for rule in policy.rules:
                yield from _rule(index, policy, rule)


def _rule(index: ClusterIndex, policy: PolicyOutline, rule: RuleOutline) -> Iterator[Finding]:
    for first, second in pairwise(rule.peers):
        spaces, pods = (first, second) if first.namespaces_path else (second, first)
        if not _bare_namespaces(spaces) or not _bare_pods(pods):
            continue
        assert spaces.pods is not None
        assert pods.pods is not None
        both = PodSelector(namespaces=spaces.pods.namespaces, pods=pods.pods.pods)
        meant = index.pods(both)
        if not meant:
            continue
        severity = NOTE if index.matching(pods.pods) else WARNING
        allowed = len({id(pod) for selector in (spaces.pods, pods.pods) for pod in index.pods(selector)})
        text = (
            f"a peer needs to match only one of the two items: {count(allowed, 'pod')} match. To allow only pods with "
            f"these labels in these namespaces ({len(meant)}), write podSelector and namespaceSelector into one item, "
            "without a dash before the second"
        )
        yield policy.finding("peers-or", second.path, text, severity)


def _bare_namespaces(peer: PeerOutline) -> bool:
    """Whether a peer has only a namespaceSelector, and this selects by labels."""
    return bool(
        peer.pods is not None
        and peer.namespaces_path
        and peer.pods_path == peer.path
        and peer.pods.namespaces != LabelSelector()
    )


def _bare_pods(peer: PeerOutline) -> bool:
    """Whether a peer has only a podSelector, and this selects by labels."""
    return peer.pods is not None and not peer.namespaces_path and peer.pods.pods != LabelSelector()
