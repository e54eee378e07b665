"""Numbers of lists and endpoints: one mark holds both, and removed endpoints' numbers are reused late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.proxy.dataplanes.nftables import affinity
from podwire.proxy.dataplanes.nftables.affinity import (
    AFFINITY_BIT,
    ENDPOINTS,
    LISTS,
    AffinityList,
    AffinityMarks,
    AffinityNumbers,
)
from podwire.proxy.servicemap import ResolvedEndpoint

LIST, ENDPOINT = st.integers(0, LISTS - 1), st.integers(1, ENDPOINTS)


@given(st.integers(0, 29), LIST, ENDPOINT)
def test_a_mark_holds_list_and_endpoint_without_the_masquerade_bit(bit: int, number: int, endpoint: int) -> None:
    marks = AffinityMarks(1 << bit)
    mark = marks.mark(number, endpoint)
    assert 0 <= mark < 1 << 32
    assert mark & AFFINITY_BIT
    assert not (mark | marks.mask) & 1 << bit
    assert marks.split(mark) == marks.split(mark | 1 << bit) == (number, endpoint)


@given(st.integers(0, 29), LIST, ENDPOINT, ENDPOINT)
def test_the_masked_mark_is_the_list_alone(bit: int, number: int, one: int, other: int) -> None:
    marks = AffinityMarks(1 << bit)
    masked = marks.mark(number, one) & marks.mask
    assert masked == marks.mark(number, other) & marks.mask == marks.mark(number, 0) != marks.mark(number, one)


def endpoints(*numbers: int) -> tuple[ResolvedEndpoint, ...]:
    return tuple(ResolvedEndpoint(f"10.0.0.{number}", 8080) for number in numbers)


def test_endpoints_keep_their_numbers_and_numbers_are_reused_late() -> None:
    first = AffinityList(7).with_endpoints(endpoints(1, 2))
    assert list(first.endpoints.values()) == [1, 2]
    assert first.with_endpoints(endpoints(2, 1)) is first
    second = first.with_endpoints(endpoints(2, 3))
    assert second.endpoints == dict(zip(endpoints(2, 3), (2, 3), strict=True))
    again = second.with_endpoints(endpoints(2, 1)).endpoints
    assert again == dict(zip(endpoints(2, 1), (2, 4), strict=True))


def test_numbers_of_endpoints_start_again_at_one() -> None:
    last = AffinityList(7, dict(zip(endpoints(1, 2), (1, ENDPOINTS), strict=True)), ENDPOINTS)
    assert last.with_endpoints(endpoints(1, 2, 3)).endpoints[endpoints(3)[0]] == 2


def test_lists_get_different_numbers() -> None:
    lists = AffinityNumbers()
    assert [lists.take(), lists.take(), lists.take(1), lists.take(9)] == [0, 1, 2, 9]
    lists.release(1)
    assert lists.take() == 3
    assert lists.take(1) == 1


def test_reserved_numbers_are_taken_only_on_request() -> None:
    lists = AffinityNumbers([0, 1])
    assert [lists.take(), lists.take(1)] == [2, 1]
    lists.end_reservations()
    assert lists.take(0) == 0


def test_no_number_is_left_when_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "LISTS", 2)
    lists = AffinityNumbers()
    assert [lists.take(), lists.take(), lists.take()] == [0, 1, None]
    lists.release(0)
    assert lists.take() == 0
