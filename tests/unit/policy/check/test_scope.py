"""What selectors ask for, compared."""

from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.check.scope import scope
from podwire.policy.selectors import PodSelector

WEB = LabelSelector(match_labels={"app": "web"})
FRONT = LabelSelector(match_labels={"app": "web", "tier": "front"})


def within(pod_selector: PodSelector, other: PodSelector) -> bool:
    return scope(pod_selector).within(scope(other))


def test_labels() -> None:
    same = LabelSelector(match_expressions=(Requirement(key="app", operator="In", values=("web",)),))
    assert within(PodSelector(pods=FRONT), PodSelector(pods=WEB))
    assert not within(PodSelector(pods=WEB), PodSelector(pods=FRONT))
    assert within(PodSelector(pods=same), PodSelector(pods=WEB))


def test_namespaces() -> None:
    shop = LabelSelector(match_labels={"kubernetes.io/metadata.name": "shop"})
    more = LabelSelector(match_labels={"kubernetes.io/metadata.name": "shop", "team": "sales"})
    assert within(PodSelector(namespace="shop", pods=FRONT), PodSelector(namespaces=shop, pods=WEB))
    assert within(PodSelector(namespaces=shop), PodSelector(namespace="shop"))
    assert not within(PodSelector(namespace="shop"), PodSelector(namespaces=more))
    assert within(PodSelector(namespace="shop"), PodSelector())
    assert not within(PodSelector(namespace="shop"), PodSelector(namespace="blog"))
    assert not within(PodSelector(namespaces=WEB), PodSelector(namespace="shop"))
    assert within(PodSelector(namespaces=FRONT), PodSelector(namespaces=WEB))
