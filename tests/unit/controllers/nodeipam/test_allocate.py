"""Node CIDRs: tables and properties."""

from collections.abc import Iterable
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controllers.nodeipam.allocate import Exhausted, Network, NodeCidrs, default_mask, parse_cidrs
from podwire.errors import ConfigError


def cidrs(*texts: str, masks: tuple[int, ...] = (), excluded: tuple[str, ...] = ()) -> NodeCidrs:
    return NodeCidrs([ip_network(t) for t in texts], masks, [ip_network(t) for t in excluded])


def texts(networks: Iterable[Network]) -> list[str]:
    return [str(network) for network in networks]


def test_blocks_are_given_in_order_and_kept() -> None:
    pool = cidrs("10.244.0.0/16")
    assert texts(pool.allocate("a")) == ["10.244.0.0/24"]
    assert texts(pool.allocate("b")) == ["10.244.1.0/24"]
    assert texts(pool.allocate("a")) == ["10.244.0.0/24"]


def test_dual_stack() -> None:
    pool = cidrs("10.244.0.0/16", "fd00:10::/56")
    assert texts(pool.allocate("a")) == ["10.244.0.0/24", "fd00:10::/64"]
    assert texts(pool.allocate("b")) == ["10.244.1.0/24", "fd00:10:0:1::/64"]


def test_existing_nodes_and_service_cidrs_are_left_alone() -> None:
    pool = cidrs("10.244.0.0/16", excluded=("10.244.1.0/25", "10.244.2.0/23"))
    pool.occupy("old", [ip_network("10.244.0.0/24")])
    assert texts(pool.allocate("new")) == ["10.244.4.0/24"]


def test_a_freed_block_comes_back_only_after_the_others() -> None:
    pool = cidrs("10.0.0.0/22")
    for name in "abc":
        pool.allocate(name)
    pool.release("a")
    assert texts(pool.allocate("d")) == ["10.0.3.0/24"]
    assert texts(pool.allocate("e")) == ["10.0.0.0/24"]
    with pytest.raises(Exhausted, match=r"10\.0\.0\.0/22"):
        pool.allocate("f")


def test_exhaustion_of_one_family_gives_the_other_back() -> None:
    pool = cidrs("10.0.0.0/16", "fd00::/63")
    pool.allocate("a")
    pool.allocate("b")
    with pytest.raises(Exhausted):
        pool.allocate("c")
    pool.release("a")
    assert texts(pool.allocate("c"))[1] == "fd00::/64"


def test_node_with_another_block_size_occupies_all_overlapping_blocks() -> None:
    pool = cidrs("10.0.0.0/20")
    pool.occupy("big", [ip_network("10.0.0.0/22")])
    pool.occupy("small", [ip_network("10.0.4.128/26")])
    pool.occupy("foreign", [ip_network("192.168.0.0/24")])
    assert texts(pool.allocate("a")) == ["10.0.5.0/24"]


def test_a_block_written_twice_by_hand_stays_used() -> None:
    pool = cidrs("10.0.0.0/23")
    pool.occupy("a", [ip_network("10.0.0.0/24")])
    pool.occupy("b", [ip_network("10.0.0.0/24")])
    pool.release("a")
    pool.allocate("c")
    with pytest.raises(Exhausted):
        pool.allocate("d")


@pytest.mark.parametrize(
    ("cidr", "mask"), [("10.0.0.0/8", 24), ("10.0.0.0/28", 32), ("fd00::/56", 64), ("fd00::/96", 104)]
)
def test_default_masks(cidr: str, mask: int) -> None:
    assert default_mask(ip_network(cidr)) == mask


@pytest.mark.parametrize(
    ("given_cidrs", "message"),
    [
        (["10.0.0.0"], None),
        (["10.0.0.1/8"], "host bits"),
        (["x"], "expected a network"),
        (["10.0.0.0/8", "11.0.0.0/8"], "at most one IPv4"),
    ],
)
def test_parse(given_cidrs: list[str], message: str | None) -> None:
    if message is None:
        assert parse_cidrs("s", "p", given_cidrs)
    else:
        with pytest.raises(ConfigError, match=message):
            parse_cidrs("s", "p", given_cidrs)


@pytest.mark.parametrize(("cidr", "mask"), [("10.0.0.0/8", 28), ("10.0.0.0/24", 20)])
def test_masks_that_do_not_fit(cidr: str, mask: int) -> None:
    with pytest.raises(ConfigError):
        cidrs(cidr, masks=(mask,))


@given(st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.booleans()), max_size=60))
def test_no_two_nodes_overlap_and_services_stay_free(steps: list[tuple[str, bool]]) -> None:
    services = ip_network("10.0.2.0/24")
    pool = cidrs("10.0.0.0/21", "fd00::/61", excluded=(str(services),))
    for name, add in steps:
        if not add:
            pool.release(name)
            continue
        try:
            first = pool.allocate(name)
        except Exhausted:
            assert len(pool.nodes) >= 7
            continue
        assert pool.allocate(name) == first
        given_out = [network for networks in pool.nodes.values() for network in networks]
        assert len(given_out) == len(set(given_out))
        assert services not in given_out
