"""The addresses that a pod asks for."""

import pytest

from podwire.cluster.names import POD_ADDRESSES
from podwire.cni.pinned import pinned
from podwire.errors import CniError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.244.0.11", ["10.244.0.11"]),
        ("10.244.0.11, fd10::a", ["10.244.0.11", "fd10::a"]),
        ("fd10::a,10.244.0.11", ["fd10::a", "10.244.0.11"]),
    ],
    ids=str,
)
def test_an_address_of_each_family_that_is_named(text: str, expected: list[str]) -> None:
    assert [str(address) for address in pinned({POD_ADDRESSES: text, "other": "x"})] == expected


def test_nothing_is_asked_for_without_the_annotation() -> None:
    assert pinned({"podwire.io/other": "10.0.0.1"}) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not an address"),
        ("10.244.0", "'10.244.0' is not an address"),
        ("10.244.0.1/24", "'10.244.0.1/24' is not an address"),
        ("10.244.0.1,10.244.0.2", "has two addresses of one family"),
    ],
    ids=str,
)
def test_invalid_addresses_are_refused_with_the_expectation(text: str, problem: str) -> None:
    with pytest.raises(CniError, match=problem) as failure:
        pinned({POD_ADDRESSES: text})
    assert failure.value.code == 7
    assert "one of each family" in failure.value.details
