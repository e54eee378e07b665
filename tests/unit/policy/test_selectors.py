"""Numbers for selectors, and what matches, while both come and go."""

import random

from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.selectors import PodSelector, SelectorIndex

LABELS: dict[str, dict[str, str]] = {"shop": {"team": "sales"}, "blog": {"team": "press"}}
WEB = LabelSelector(match_labels={"app": "web"})


def index() -> SelectorIndex:
    return SelectorIndex(lambda name: LABELS.get(name, {}))


def test_equal_selectors_share_one_number_until_released() -> None:
    created = index()
    first, second = created.take(PodSelector(pods=WEB)), created.take(PodSelector(pods=WEB))
    assert first == second
    created.release(first)
    assert created.matching("shop", {"app": "web"}) == {first}
    created.release(second)
    assert created.take(PodSelector(pods=WEB)) != first


def test_a_namespace_by_name_and_by_its_labels() -> None:
    created = index()
    by_name = created.take(PodSelector(namespace="shop", pods=WEB))
    by_labels = created.take(PodSelector(namespaces=LabelSelector(match_labels={"team": "press"})))
    everywhere = created.take(PodSelector())
    assert created.matching("shop", {"app": "web"}) == {by_name, everywhere}
    assert created.matching("blog", {"app": "web"}) == {by_labels, everywhere}
    assert created.matching("ops", {}) == {everywhere}


def test_a_new_selector_matches_known_labels() -> None:
    created = index()
    first = created.take(PodSelector(pods=WEB))
    assert created.matching("shop", {"app": "web"}) == {first}
    absent = PodSelector(pods=LabelSelector(match_expressions=(Requirement(key="tier", operator="DoesNotExist"),)))
    second = created.take(absent)
    assert created.matching("shop", {"app": "web"}) == {first, second}
    created.release(first)
    third = created.take(PodSelector(namespace="shop"))
    assert created.matching("shop", {"app": "web"}) == {second, third}


def test_labels_of_a_namespace_that_changed() -> None:
    labels = {"team": "sales"}
    selector_index = SelectorIndex(lambda _: labels)
    number = selector_index.take(PodSelector(namespaces=LabelSelector(match_labels={"team": "sales"})))
    assert selector_index.matching("shop", {}) == {number}
    labels["team"] = "press"
    selector_index.forget("shop")
    assert selector_index.matching("shop", {}) == frozenset()


POD_NAME = "statefulset.kubernetes.io/pod-name"


def test_labels_that_no_selector_mentions_make_no_difference() -> None:
    created = index()
    number = created.take(PodSelector(pods=WEB))
    for pod in range(9):
        assert created.matching("shop", {"app": "web", POD_NAME: f"web-{pod}"}) == {number}
    assert created.remembered("shop") == 1
    version = created.version
    first = created.take(PodSelector(pods=LabelSelector(match_labels={POD_NAME: "web-0"})))
    assert created.version != version, "what was the same may differ now"
    assert created.matching("shop", {"app": "web", POD_NAME: "web-0"}) == {number, first}
    assert created.matching("shop", {"app": "web", POD_NAME: "web-1"}) == {number}
    created.release(first)
    created.take(PodSelector(pods=LabelSelector(match_labels={"tier": "front"})))
    assert created.matching("shop", {"app": "web", POD_NAME: "web-0"}) == {number}
    assert created.matching("shop", {"app": "web", POD_NAME: "web-1"}) == {number}
    assert created.remembered("shop") == 1, "nobody speaks of it any more"


class Tried(LabelSelector, frozen=True):
    """Notes that it was asked."""

    def matches(self, labels: dict[str, str]) -> bool:
        TRIED.append(self)
        return LabelSelector.matches(self, labels)


TRIED: list[Tried] = []


def test_a_pod_is_tried_on_the_selectors_that_could_match() -> None:
    created = index()
    for number in range(300):
        labels = {"tier": "back", "app": f"a{number}"}
        created.take(PodSelector(namespace="shop" if number % 2 else "blog", pods=Tried(match_labels=labels)))
        created.take(PodSelector(pods=Tried(match_labels=labels, match_expressions=(Requirement("app", "Exists"),))))
        of = LabelSelector(match_labels={"team": f"t{number}"})
        created.take(PodSelector(namespaces=of, pods=Tried()))
    TRIED.clear()
    assert len(created.matching("shop", {"tier": "back", "app": "a7", POD_NAME: "a7-0"})) == 2
    assert len(TRIED) <= 4, "of 900"


def test_matches_equal_each_selector_after_any_history() -> None:
    chance = random.Random(7)
    created = index()
    used: list[tuple[int, PodSelector]] = []
    keys, values = ("app", "tier", "zone"), ("", "a", "b", "c")

    def requirement() -> Requirement:
        operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        subset = tuple(chance.sample(values, chance.randint(1, 3))) if operator.endswith("In") else ()
        return Requirement(key=chance.choice(keys), operator=operator, values=subset)

    def labels() -> dict[str, str]:
        return {key: chance.choice(values) for key in chance.sample(keys, chance.randint(0, 3))}

    def selector() -> LabelSelector:
        return LabelSelector(match_labels=labels() if chance.random() < 0.5 else {}, match_expressions=terms())

    def terms() -> tuple[Requirement, ...]:
        return tuple(requirement() for _ in range(chance.randint(0, 2)))

    for _ in range(60):
        for _ in range(chance.choice((1, 30))):
            namespace = chance.choice(("", "", "shop", "blog"))
            of = LabelSelector(match_labels=chance.choice(({}, {"team": "sales"}, {"team": "x"})))
            pod_selector = PodSelector(namespace=namespace, namespaces=of, pods=selector())
            used.append((created.take(pod_selector), pod_selector))
        for _ in range(len(used) // 3):
            created.release(used.pop(chance.randrange(len(used)))[0])
        for _ in range(5):
            place, have = chance.choice(("shop", "blog", "ops")), labels()
            expected = {n for n, item in used if item.matches(place, LABELS.get(place, {}), have)}
            assert created.matching(place, have) & {n for n, _ in used} == expected
