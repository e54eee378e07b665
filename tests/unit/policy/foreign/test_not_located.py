"""How pods without a known device are reported."""

from podwire.policy.foreign.discovery import not_located


def test_the_first_three_pods_without_a_device_are_named() -> None:
    assert not_located(frozenset()) == ""
    assert not_located(frozenset({"a/b"})) == "policy: no device of a/b is known; they are shut off"
    assert "of a/1, a/2, a/3, ... is known" in not_located(frozenset(f"a/{number}" for number in range(1, 6)))
