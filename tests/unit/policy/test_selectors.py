"""Numbers for selectors, and what matches, while both come and go."""

from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.selectors import PodSelector, SelectorIndex

LABELS: dict[str, dict[str, str]] = {"shop": {"team": "sales"}, "blog": {"team": "press"}}
WEB = LabelSelector(match_labels={"app": "web"})


def index() -> SelectorIndex:
    return SelectorIndex(lambda name: LABELS.get(name, {}))


def test_equal_selectors_have_one_number_until_the_last_lets_go() -> None:
    made = index()
    first, second = made.take(PodSelector(pods=WEB)), made.take(PodSelector(pods=WEB))
    assert first == second
    made.release(first)
    assert made.matching("shop", {"app": "web"}) == {first}
    made.release(second)
    assert made.take(PodSelector(pods=WEB)) != first


def test_a_namespace_by_name_and_by_its_labels() -> None:
    made = index()
    by_name = made.take(PodSelector(namespace="shop", pods=WEB))
    by_labels = made.take(PodSelector(namespaces=LabelSelector(match_labels={"team": "press"})))
    everywhere = made.take(PodSelector())
    assert made.matching("shop", {"app": "web"}) == {by_name, everywhere}
    assert made.matching("blog", {"app": "web"}) == {by_labels, everywhere}
    assert made.matching("ops", {}) == {everywhere}


def test_a_selector_that_comes_later_matches_labels_that_are_known() -> None:
    made = index()
    first = made.take(PodSelector(pods=WEB))
    assert made.matching("shop", {"app": "web"}) == {first}
    absent = PodSelector(pods=LabelSelector(match_expressions=(Requirement(key="tier", operator="DoesNotExist"),)))
    second = made.take(absent)
    assert made.matching("shop", {"app": "web"}) == {first, second}
    made.release(first)
    third = made.take(PodSelector(namespace="shop"))
    assert made.matching("shop", {"app": "web"}) == {second, third}


def test_labels_of_a_namespace_that_changed() -> None:
    labels = {"team": "sales"}
    made = SelectorIndex(lambda _: labels)
    number = made.take(PodSelector(namespaces=LabelSelector(match_labels={"team": "sales"})))
    assert made.matching("shop", {}) == {number}
    labels["team"] = "press"
    made.forget("shop")
    assert made.matching("shop", {}) == frozenset()
