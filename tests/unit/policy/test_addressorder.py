"""Addresses in order: those within a range, after any changes."""

import random
from ipaddress import ip_address

import pytest

from podwire.policy.addressorder import AddressOrder


@pytest.mark.parametrize("size", [5, 600], ids=["few changes", "many changes"])
def test_addresses_within_a_range_after_changes(size: int) -> None:
    rng = random.Random(size)
    order, known = AddressOrder(), set[str]()
    for _ in range(30):
        changed = {f"10.0.{rng.randrange(4)}.{rng.randrange(256)}" for _ in range(size)}
        known ^= changed
        order.change(changed)
        first, last = sorted(rng.randrange(10 << 24, (10 << 24) + 1200) for _ in range(2))
        found = order.within(first, last, known.__contains__)
        assert sorted(found) == sorted(text for text in known if first <= int(ip_address(text)) <= last)


def test_two_texts_of_one_address_are_both_found() -> None:
    order, known = AddressOrder(), {"fd00::1", "fd00:0::1"}
    order.change(known)
    assert set(order.within(0, 1 << 127 | 1 << 126 | (1 << 126) - 1, known.__contains__)) == known
