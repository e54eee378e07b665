"""The names of profiles: new ones, and those that the kernel holds."""

from podwire.policy.profile import ProfileKey
from podwire.policy.profilenames import NO_NAMES, ProfileName, ProfileNames, kernel_names

WEB, DB, ALL = (ProfileKey(direction="Ingress", subjects=(text,)) for text in ("web", "db", "all"))
ONE, TWO = ProfileName("Ingress", "1"), ProfileName("Ingress", "2")


def test_profiles_have_different_names_that_stay() -> None:
    names = ProfileNames(NO_NAMES)
    assert len({names.take(WEB), names.take(DB)}) == 2
    assert names.take(WEB) == names[WEB]


def test_name_of_an_ended_profile_is_free_after_the_commit() -> None:
    names = ProfileNames(NO_NAMES)
    before = names.take(WEB)
    assert names.drop(WEB) == before
    assert names.get(WEB) is None
    assert names.take(WEB) != before
    names.drop(WEB)
    names.settle()
    assert names.take(WEB) == before


def test_profile_keeps_the_name_that_its_pods_are_led_to() -> None:
    known = kernel_names([("a", ONE), ("b", ONE), ("gone", ONE)], {"a": WEB, "b": WEB, "new": WEB}, {})
    assert ProfileNames(known).take(WEB) == ONE


def test_name_that_leads_pods_of_two_profiles_is_not_used() -> None:
    first = ProfileNames(NO_NAMES).take(WEB)
    known = kernel_names([("a", first), ("b", first)], {"a": WEB, "b": DB}, {})
    names = ProfileNames(known)
    assert first not in (names.take(WEB), names.take(DB))
    known = kernel_names([("a", first), ("b", first)], {"a": WEB, "b": None}, {})
    assert ProfileNames(known).take(WEB) != first


def test_profile_with_two_names_keeps_that_of_more_pods() -> None:
    known = kernel_names([("a", ONE), ("b", TWO), ("c", TWO)], {"a": ALL, "b": ALL, "c": ALL}, {})
    names = ProfileNames(known)
    assert names.take(ALL) == TWO
    assert ONE not in (names.take(WEB), names.take(DB))


def test_profile_without_pods_of_a_family_has_its_other_name() -> None:
    assert ProfileNames(kernel_names([], {}, {WEB: ONE})).take(WEB) == ONE
    known = kernel_names([("a", ONE)], {"a": DB}, {WEB: ONE})
    assert ProfileNames(known).take(WEB) != ONE
