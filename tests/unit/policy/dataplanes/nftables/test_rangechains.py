"""Many ranges of a profile in parts: the same parts after each way to the ranges, few new parts for a change."""

import random

import pytest

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables import rangechains
from podwire.policy.dataplanes.nftables.layout import TableLayout
from podwire.policy.dataplanes.nftables.rangechains import FEW, MOST, ProfileRanges, RangeChain, RangeChains
from podwire.policy.profilenames import ProfileName
from podwire.state.nft import Chain, Element, Set

KEY = ProfileName("Ingress", "0a1b2c")
Contents = KeyedContents[Chain, Set, bytes, Element]


def ranges(numbers: list[int]) -> list[RangeChain]:
    return [(number << 8, (number << 8) + 255, f"ports-{number}") for number in sorted(numbers)]


def profile(family: str = "ip") -> tuple[ProfileRanges, Contents]:
    keyed: Contents = KeyedContents()
    return ProfileRanges(RangeChains(TableLayout(family=family), keyed), KEY), keyed


def entries(wanted: list[RangeChain], family: str = "ip") -> tuple[RangeChain, ...]:
    """The entries of a profile that gets all ranges at once."""
    created, _ = profile(family)
    created.fill(wanted)
    return created.entries


def test_few_ranges_are_one_map() -> None:
    created, keyed = profile()
    few = ranges(list(range(FEW)))
    created.fill(few)
    assert created.entries == tuple(few)
    assert not keyed.chains
    assert not keyed.sets


def test_parts_hold_all_ranges_and_span_them() -> None:
    created, keyed = profile()
    many = ranges(random.Random(1).sample(range(1 << 16), 1000))
    created.fill(many)
    spans = created.entries
    assert 10 < len(spans) < 100
    held = [
        element.verdict.chain for name in keyed.sets for element in keyed.elements[name].values() if element.verdict
    ]
    assert sorted(held) == sorted(chain for _, _, chain in many)
    assert all(len(elements) <= MOST for elements in keyed.elements.values())
    for first, last, name in spans:
        own = keyed.elements[f"{name}-map"]
        assert min(own) == first.to_bytes(4, "big")
        assert max(element.end for element in own.values()) == last.to_bytes(4, "big")


def test_one_more_range_rewrites_few_chains() -> None:
    numbers = random.Random(2).sample(range(1 << 16), 1000)
    before, after = entries(ranges(numbers[:-1])), entries(ranges(numbers))
    assert 1 <= len(set(after) - set(before)) <= 3


@pytest.mark.parametrize("most", [4, MOST])
@pytest.mark.parametrize("seed", range(4))
def test_replaced_ranges_are_cut_as_if_they_came_at_once(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that come, go and change, alone and many at a time, also at both ends and down to few."""
    monkeypatch.setattr(rangechains, "MOST", most)
    monkeypatch.setattr(rangechains, "FEW", 8)
    chance = random.Random(seed)
    created, keyed = profile()
    present: set[int] = set()
    for step in range(300):
        low = chance.randrange(400)
        high = min(399, low + chance.choice((0, 0, 0, 3, 60)))
        wanted = {number for number in range(low, high + 1) if chance.random() < (0.7 if step % 100 < 70 else 0.1)}
        present = {number for number in present if not low <= number <= high} | wanted
        created.replace(low << 8, (high << 8) + 255, ranges(list(wanted)))
        assert created.entries == entries(ranges(list(present)))
        assert len(keyed.chains) == (len(created.entries) if len(present) > 8 else 0)
    created.drop()
    assert not keyed.chains
    assert not keyed.sets


def test_ranges_of_ipv6_are_parted_too() -> None:
    assert 10 < len(entries([(number << 64, (number << 64) + 5, "ports-x") for number in range(1000)], "ip6")) < 100


def test_directions_share_no_parts_and_profiles_do() -> None:
    keyed: Contents = KeyedContents()
    chains = RangeChains(TableLayout(family="ip"), keyed)
    names = (KEY, ProfileName("Egress", "0a1b2c"), ProfileName("Ingress", "3d4e5f"))
    own, other, same = (ProfileRanges(chains, name) for name in names)
    for created in (own, other, same):
        created.fill(ranges(list(range(200))))
    assert not {name for _, _, name in own.entries} & {name for _, _, name in other.entries}
    assert same.entries == own.entries
    own.drop()
    assert {name for _, _, name in same.entries} <= keyed.chains.keys()
    for created in (other, same):
        created.drop()
    assert not keyed.chains
    assert not keyed.sets
