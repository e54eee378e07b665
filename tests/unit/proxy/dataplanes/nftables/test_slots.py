"""Endpoints keep their slots, and capacities change only when needed."""

from hypothesis import given
from hypothesis import strategies as st

from podwire.proxy.dataplanes.nftables.slots import MIN_CAPACITY, EndpointSlots, keep_capacity, keep_slots
from podwire.proxy.servicemap import ResolvedEndpoint

ENDPOINTS = st.lists(st.integers(1, 40), max_size=30, unique=True).map(
    lambda numbers: tuple(ResolvedEndpoint(f"10.0.0.{number}", 8080) for number in numbers)
)


@given(ENDPOINTS, ENDPOINTS)
def test_remaining_endpoints_keep_their_slots(
    before: tuple[ResolvedEndpoint, ...], wanted: tuple[ResolvedEndpoint, ...]
) -> None:
    after = keep_slots(before, wanted)
    assert sorted(after) == sorted(wanted)
    for slot, endpoint in enumerate(after):
        if slot < len(before) and before[slot] in wanted:
            assert endpoint == before[slot]


@given(st.lists(ENDPOINTS, min_size=1))
def test_half_of_the_slots_are_in_use(changes: list[tuple[ResolvedEndpoint, ...]]) -> None:
    endpoint_slots = EndpointSlots()
    for change in changes:
        endpoint_slots = endpoint_slots.with_endpoints(change)
        capacity, count = endpoint_slots.capacity, len(endpoint_slots.endpoints)
        assert capacity.bit_count() == 1
        assert count <= capacity
        assert capacity == MIN_CAPACITY or 2 * count >= capacity


def test_capacity_changes_only_at_powers_of_two() -> None:
    assert keep_capacity(4, 4) == 4
    assert keep_capacity(4, 5) == 8
    assert keep_capacity(8, 4) == 8
    assert keep_capacity(8, 3) == 4
    assert keep_capacity(16, 4) == 4
    assert keep_capacity(3, 3) == 4
    assert keep_capacity(1024, 0) == MIN_CAPACITY
