"""Addresses in order, against looking at all of them."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from podwire.policy.addressorder import AddressOrder

ADDRESSES = st.integers(0, 700).map(lambda number: f"10.0.{number >> 8}.{number & 255}")
BASE = 10 << 24


@given(
    st.sets(ADDRESSES), st.lists(st.tuples(st.sets(ADDRESSES), st.integers(0, 700), st.integers(0, 700)), max_size=5)
)
def test_addresses_of_a_range_are_found(start: set[str], steps: list[tuple[set[str], int, int]]) -> None:
    order, present = AddressOrder((address, address) for address in start), set(start)
    for changed, first, length in steps:
        present ^= changed
        for address in changed:
            order.change(address)
        first, last = BASE + first, BASE + first + length
        expected = sorted((int(ip_address(address)), address) for address in present)
        result = order.within(first, last, present.__contains__)
        assert result == [address for number, address in expected if first <= number <= last]


def test_many_changes_at_once_are_found() -> None:
    order = AddressOrder(())
    every = [f"10.0.{number >> 8}.{number & 255}" for number in range(1000)]
    for address in every:
        order.change(address)
    assert order.within(BASE, BASE + 999, lambda _: True) == every


def test_node_address_is_found_by_its_other_addresses() -> None:
    order = AddressOrder((("10.244.1.1", "192.168.0.1"), ("10.244.1.1", "192.168.0.9"), ("192.168.0.1", "192.168.0.1")))
    first = int(ip_address("192.168.0.0"))
    assert order.within(first, first + 4, lambda _: True) == ["10.244.1.1", "192.168.0.1"]
    assert order.within(first + 5, first + 255, lambda _: True) == ["10.244.1.1"]
