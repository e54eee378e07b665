"""The cause of a refusal is found among the objects that changed, and no object loses what worked."""

from collections.abc import Callable

import pytest

from podwire.gateway.acceptance import Acceptance, ObjectKey, ResourceRefusal


def _key(name: str) -> ObjectKey:
    return ("HTTPRoute", name)


def _objects(**versions: str) -> dict[ObjectKey, str]:
    return {_key(name): version for name, version in versions.items()}


def _settle(
    acceptance: Acceptance[str], objects: dict[ObjectKey, str], is_bad: Callable[[str], bool]
) -> list[dict[ObjectKey, str]]:
    """Lets engines answer until nothing is left to try; they refuse a table with a bad version. Returns what was
    served."""
    served = []
    for _ in range(50):
        choice = acceptance.choose(objects)
        served.append(dict(choice.objects))
        wrong = any(is_bad(version) for version in choice.objects.values())
        refusals = [ResourceRefusal(frozenset(choice.objects), "bad pattern")] if wrong else []
        if not acceptance.learn(refusals):
            return served
    pytest.fail("the search does not end")


def _bad(version: str) -> bool:
    return version.startswith("bad")


@pytest.mark.parametrize("wrong", [("a",), ("h",), ("a", "b"), ("c", "f", "g"), tuple("abcdefgh")])
def test_every_wrong_object_is_found_and_the_others_are_served(wrong: tuple[str, ...]) -> None:
    acceptance = Acceptance[str]()
    objects = _objects(**{name: f"bad {name}" if name in wrong else f"good {name}" for name in "abcdefgh"})
    served = _settle(acceptance, objects, _bad)[-1]
    assert set(acceptance.refused) == {_key(name) for name in wrong}
    assert served == {key: version for key, version in objects.items() if not _bad(version)}
    assert not acceptance.searching


def test_a_wrong_object_keeps_its_last_good_version() -> None:
    acceptance = Acceptance[str]()
    _settle(acceptance, _objects(a="good 1", b="good 1", c="good 1"), _bad)
    served = _settle(acceptance, _objects(a="good 2", b="bad 2", c="good 2"), _bad)
    assert served[-1] == _objects(a="good 2", b="good 1", c="good 2")
    assert all(set(entry) == set(_objects(a="", b="", c="")) for entry in served)
    assert acceptance.refused == {_key("b"): "bad pattern"}


def test_an_object_that_is_put_right_is_served_again() -> None:
    acceptance = Acceptance[str]()
    _settle(acceptance, _objects(a="bad 1", b="good 1"), _bad)
    assert _settle(acceptance, _objects(a="good 2", b="good 1"), _bad)[-1] == _objects(a="good 2", b="good 1")
    assert not acceptance.refused


def test_others_go_on_being_updated_while_one_is_refused() -> None:
    acceptance = Acceptance[str]()
    _settle(acceptance, _objects(a="bad 1", b="good 1"), _bad)
    served = _settle(acceptance, _objects(a="bad 1", b="good 2", c="good 1"), _bad)
    assert served == [_objects(b="good 2", c="good 1")]


def test_what_changes_during_a_search_is_tried_after_it() -> None:
    acceptance = Acceptance[str]()
    objects = _objects(a="bad 1", b="good 1")
    choice = acceptance.choose(objects)
    assert acceptance.learn([ResourceRefusal(frozenset(choice.objects), "bad pattern")])
    objects |= _objects(c="bad 1")
    assert _key("c") in acceptance.choose(objects).withheld
    served = _settle(acceptance, objects, _bad)[-1]
    assert served == _objects(b="good 1")
    assert set(acceptance.refused) == {_key("a"), _key("c")}


def test_a_refusal_that_comes_late_is_attributed_too() -> None:
    acceptance = Acceptance[str]()
    acceptance.choose(_objects(a="good 1", b="good 1"))
    assert not acceptance.learn([])
    objects = _objects(a="bad 2", b="good 1")
    acceptance.choose(objects)
    assert not acceptance.learn([])  # the engine had not asked for the table yet
    served = _settle(acceptance, objects, _bad)[-1]
    assert served == _objects(a="good 1", b="good 1")
    assert set(acceptance.refused) == {_key("a")}
