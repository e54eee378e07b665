"""Many ranges of a profile in parts: the same parts after each way to the ranges, few new parts for a change."""

import random

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables.layout import TableLayout
from podwire.policy.dataplanes.nftables.rangechains import FEW, MOST, RangeChain, RangeChains
from podwire.policy.profilenames import ProfileName
from podwire.state.nft import Chain, Element, Set

KEY = ProfileName("Ingress", "0a1b2c")
Contents = KeyedContents[Chain, Set, bytes, Element]


def ranges(numbers: list[int]) -> list[RangeChain]:
    return [(number << 8, (number << 8) + 255, f"ports-{number}") for number in sorted(numbers)]


def parts(family: str = "ip") -> tuple[RangeChains, Contents]:
    keyed: Contents = KeyedContents()
    return RangeChains(TableLayout(family=family), keyed), keyed


def test_few_ranges_are_one_map() -> None:
    created, keyed = parts()
    few = ranges(list(range(FEW)))
    assert created.take(few, KEY) == tuple(few)
    assert not keyed.chains
    assert not keyed.sets


def test_parts_hold_all_ranges_and_span_them() -> None:
    created, keyed = parts()
    many = ranges(random.Random(1).sample(range(1 << 16), 1000))
    spans = created.take(many, KEY)
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
    created, _ = parts()
    numbers = random.Random(2).sample(range(1 << 16), 1000)
    before = created.take(ranges(numbers[:-1]), KEY)
    after = created.take(ranges(numbers), KEY)
    assert 1 <= len(set(after) - set(before)) <= 3
    assert parts()[0].take(ranges(numbers), KEY) == after


def test_ranges_of_ipv6_are_parted_too() -> None:
    created, _ = parts("ip6")
    many = [(number << 64, (number << 64) + 5, "ports-x") for number in range(1000)]
    spans = created.take(many, KEY)
    assert 10 < len(spans) < 100


def test_directions_share_no_parts_and_profiles_do() -> None:
    created, keyed = parts()
    many = ranges(list(range(200)))
    item, other = created.take(many, KEY), created.take(many, ProfileName("Egress", "0a1b2c"))
    assert not {name for _, _, name in item} & {name for _, _, name in other}
    assert created.take(many, ProfileName("Ingress", "3d4e5f")) == item
    created.drop(item)
    assert {name for _, _, name in item} <= keyed.chains.keys()
    for spans in (item, other):
        created.drop(spans)
    assert not keyed.chains
    assert not keyed.sets
