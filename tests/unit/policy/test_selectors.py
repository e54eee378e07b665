"""Numbers for selectors, and what matches, while both come and go."""

import random

from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.selectors import PodSelector, SelectorIndex

LABELS: dict[str, dict[str, str]] = {"shop": {"team": "sales"}, "blog": {"team": "press"}}
WEB = LabelSelector(match_labels={"app": "web"})


def index() -> SelectorIndex:
    return SelectorIndex(lambda name: LABELS.get(name, {}))


def test_equal_selectors_share_one_number_until_released() -> None:
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


def test_a_new_selector_matches_known_labels() -> None:
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


POD_NAME = "statefulset.kubernetes.io/pod-name"


def test_labels_that_no_selector_mentions_make_no_difference() -> None:
    made = index()
    number = made.take(PodSelector(pods=WEB))
    for pod in range(9):
        assert made.matching("shop", {"app": "web", POD_NAME: f"web-{pod}"}) == {number}
    assert made.remembered("shop") == 1
    version = made.version
    first = made.take(PodSelector(pods=LabelSelector(match_labels={POD_NAME: "web-0"})))
    assert made.version != version, "what was the same may differ now"
    assert made.matching("shop", {"app": "web", POD_NAME: "web-0"}) == {number, first}
    assert made.matching("shop", {"app": "web", POD_NAME: "web-1"}) == {number}
    made.release(first)
    made.take(PodSelector(pods=LabelSelector(match_labels={"tier": "front"})))
    assert made.matching("shop", {"app": "web", POD_NAME: "web-0"}) == {number}
    assert made.matching("shop", {"app": "web", POD_NAME: "web-1"}) == {number}
    assert made.remembered("shop") == 1, "nobody speaks of it any more"


class Tried(LabelSelector, frozen=True):
    """Notes that it was asked."""

    def matches(self, labels: dict[str, str]) -> bool:
        TRIED.append(self)
        return LabelSelector.matches(self, labels)


TRIED: list[Tried] = []


def test_a_pod_is_tried_on_the_selectors_that_could_match() -> None:
    made = index()
    for number in range(300):
        labels = {"tier": "back", "app": f"a{number}"}
        made.take(PodSelector(namespace="shop" if number % 2 else "blog", pods=Tried(match_labels=labels)))
        made.take(PodSelector(pods=Tried(match_labels=labels, match_expressions=(Requirement("app", "Exists"),))))
        of = LabelSelector(match_labels={"team": f"t{number}"})
        made.take(PodSelector(namespaces=of, pods=Tried()))
    TRIED.clear()
    assert len(made.matching("shop", {"tier": "back", "app": "a7", POD_NAME: "a7-0"})) == 2
    assert len(TRIED) <= 4, "of 900"


def test_matches_equal_each_selector_after_any_history() -> None:
    chance = random.Random(7)
    made = index()
    taken: list[tuple[int, PodSelector]] = []
    keys, values = ("app", "tier", "zone"), ("", "a", "b", "c")

    def requirement() -> Requirement:
        operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        some = tuple(chance.sample(values, chance.randint(1, 3))) if operator.endswith("In") else ()
        return Requirement(key=chance.choice(keys), operator=operator, values=some)

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
            wanted = PodSelector(namespace=namespace, namespaces=of, pods=selector())
            taken.append((made.take(wanted), wanted))
        for _ in range(len(taken) // 3):
            made.release(taken.pop(chance.randrange(len(taken)))[0])
        for _ in range(5):
            place, have = chance.choice(("shop", "blog", "ops")), labels()
            expected = {n for n, each in taken if each.matches(place, LABELS.get(place, {}), have)}
            assert made.matching(place, have) & {n for n, _ in taken} == expected
