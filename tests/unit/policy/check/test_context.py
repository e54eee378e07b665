"""What policies are checked against."""

from tests.unit.policy.check.clusters import index

from podwire.model.meta import key_of
from podwire.model.selector import LabelSelector
from podwire.model.wording import count
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.phrases import first_names
from podwire.policy.selectors import PodSelector


def names(cluster_index: ClusterIndex, selector: PodSelector) -> list[str]:
    return sorted(key_of(pod.metadata) for pod in cluster_index.pods(selector))


def test_pods_that_policies_see() -> None:
    result = index()
    web = LabelSelector(match_labels={"app": "web"})
    assert names(result, PodSelector(namespace="shop")) == ["shop/db", "shop/web"]
    assert names(result, PodSelector(pods=web)) == ["blog/web", "shop/web"]
    assert names(result, PodSelector(namespaces=LabelSelector(match_labels={"team": "press"}))) == ["blog/web"]
    assert {group.labels["app"] for group in result.excluded["shop"]} == {"agent", "job"}


def test_namespaces_of_the_files_are_known_cluster_namespaces_are_not() -> None:
    files = index(complete=False)
    assert files.knows_pods(PodSelector(namespace="shop"))
    assert not files.knows_pods(PodSelector(namespace="kube-system"))
    assert index().knows_pods(PodSelector(namespace="kube-system"))


def test_services_of_a_pod() -> None:
    result = index()
    web = result.pods(PodSelector(namespace="shop", pods=LabelSelector(match_labels={"app": "web"})))[0]
    assert [service.metadata.name for service in result.services_of(web)] == ["web"]


def test_words() -> None:
    assert first_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert (count(1, "pod"), count(0, "pod")) == ("1 pod", "0 pods")
