"""Disjoint intervals of overlapping blocks, against looking at each block."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from podwire.model.policy import IPBlock
from podwire.policy.blocks import NOWHERE, Blocks, Interval
from podwire.policy.connectionmatch import in_block


def _cidr(number: int, prefix: int) -> str:
    return f"10.0.{number >> 8}.{number & 255}/{prefix}"


CIDRS = st.builds(_cidr, st.integers(0, 1023), st.integers(22, 32))
BLOCKS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.builds(
            lambda cidr, excepted: IPBlock(cidr=cidr, excepted=tuple(excepted)), CIDRS, st.lists(CIDRS, max_size=3)
        ),
    ),
    max_size=6,
)


@given(BLOCKS, st.lists(st.integers(0, 1023), min_size=1, max_size=30))
def test_the_rules_that_hold_at_an_address(blocks: list[tuple[int, IPBlock]], numbers: list[int]) -> None:
    created = Blocks(blocks, 4)
    for number in numbers:
        address = f"10.0.{number >> 8}.{number & 255}"
        assert created.holding(address) == frozenset(rule for rule, block in blocks if in_block(address, block))


@given(BLOCKS)
def test_intervals_are_disjoint_and_in_order_and_neighbours_differ(blocks: list[tuple[int, IPBlock]]) -> None:
    result = Blocks(blocks, 4).intervals
    for (first, last, rules), (following, _, other) in itertools.pairwise(result):
        assert first <= last < following
        assert last + 1 < following or rules != other


@given(BLOCKS, st.data())
def test_rules_that_come_and_go_leave_other_ranges(blocks: list[tuple[int, IPBlock]], data: st.DataObject) -> None:
    own: dict[int, list[IPBlock]] = {}
    for number, block in blocks:
        own.setdefault(number, []).append(block)
    created = Blocks((), 4)
    present: set[int] = set()
    for number in data.draw(st.lists(st.sampled_from(sorted(own) or [0]), max_size=12)):
        before, change = list(created.intervals), created.remove if number in present else created.add
        ranges = change(number, own.get(number, ()))
        present ^= {number}
        assert created.intervals == Blocks([pair for pair in blocks if pair[0] in present], 4).intervals
        assert created.take_orphaned() >= {rules for _, _, rules in before} - {
            rules for _, _, rules in created.intervals
        }
        assert {rules for _, _, rules in created.intervals} == {
            rules for _, _, rules in (*before, *created.intervals) if created.uses(rules)
        }
        borders = {border for first, last, _ in (*before, *created.intervals) for border in (first, last + 1)}
        borders |= {border for first, last in ranges for border in (first, last + 1)}
        for at in (10 << 24, *borders):  # nothing differs between two borders
            changed = any(first <= at <= last for first, last in ranges)
            assert changed or rules_at(before, at) == rules_at(created.intervals, at)


def rules_at(intervals: list[Interval], address: int) -> frozenset[int]:
    return next((rules for first, last, rules in intervals if first <= address <= last), NOWHERE)


def test_each_family_has_its_own() -> None:
    blocks = [(0, IPBlock(cidr="0.0.0.0/0")), (1, IPBlock(cidr="::/0", excepted=("2001:db8::/32",)))]
    four, six = Blocks(blocks, 4), Blocks(blocks, 6)
    assert four.holding("255.255.255.255") == {0}
    assert six.holding("::1") == {1}
    assert six.holding("2001:db8::1") == NOWHERE


def test_invalid_ranges_contain_no_address() -> None:
    assert Blocks([(0, IPBlock(cidr="10.0.0.0/40")), (1, IPBlock(cidr="all"))], 4).intervals == []
