"""Records of who holds each address: names, text and back, changes."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.loadbalancer.blocks import Holder, block_name, read_block, render_block, with_holder

A, B = Holder("shop/a", "u1"), Holder("shop/b", "u2")


@pytest.mark.parametrize(
    ("address", "want"),
    [
        ("10.89.0.200", "load-balancer-10.89.0.0"),
        ("2001:db8::1ff", "load-balancer-2001-0db8-0000-0000-0000-0000-0000-0100"),
    ],
)
def test_256_neighbours_have_one_record(address: str, want: str) -> None:
    assert block_name(ip_address(address)) == want


@given(st.dictionaries(st.ip_addresses(), st.lists(st.sampled_from([A, B]), min_size=1, unique=True)))
def test_records_are_read_as_they_were_written(holders: dict[object, list[Holder]]) -> None:
    want = {address: tuple(sorted(entries)) for address, entries in holders.items()}
    assert read_block(render_block(want)) == want  # type: ignore[arg-type]


def test_entries_that_are_none_are_left_out() -> None:
    assert read_block({"nonsense": "shop/a/u1", "10.0.0.1": "", "10.0.0.2": "x"}) == {}


def test_a_service_holds_an_address_or_not() -> None:
    assert with_holder((B,), A, holds=True) == (A, B)
    assert with_holder((A, B), A, holds=False) == (B,)
    again = Holder("shop/a", "again")
    assert with_holder((A, B), again, holds=True) == (again, B)
