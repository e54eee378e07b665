"""Merged networks that come and go are those that a full merge gives."""

from ipaddress import IPv4Network, collapse_addresses, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.routing.networks import NetworkUnion
from podwire.state.nft import Element

NETWORKS = st.builds(
    lambda address, length: IPv4Network((address >> (32 - length) << (32 - length), length)),
    st.one_of(st.integers(0, 63), st.integers(0, (1 << 32) - 1)),
    st.one_of(st.integers(26, 32), st.integers(0, 32)),
)


@given(st.lists(st.tuples(NETWORKS, st.integers(0, 9)), max_size=40))
def test_changes_one_by_one_equal_a_full_merge(steps: list[tuple[IPv4Network, int]]) -> None:
    union = NetworkUnion(4)
    present: list[IPv4Network] = []
    for network, choice in steps:
        if choice < 4 and present:
            union.remove([present.pop(choice % len(present))])
        else:
            present.append(network)
            union.add([network])
        assert list(union.merged.networks) == list(collapse_addresses(present))
        elements = {n.network_address.packed: Element(end=n.broadcast_address.packed) for n in union.merged.networks}
        assert union.merged.elements == elements


@given(st.lists(NETWORKS, max_size=40), st.lists(NETWORKS, max_size=40))
def test_many_at_once_equal_a_full_merge(first: list[IPv4Network], then: list[IPv4Network]) -> None:
    union = NetworkUnion(4, first)
    union.add(then)
    present = [*first, *then]
    assert list(union.merged.networks) == list(collapse_addresses(present))
    elements = {n.network_address.packed: Element(end=n.broadcast_address.packed) for n in union.merged.networks}
    assert union.merged.elements == elements
    union.remove(first)
    assert list(union.merged.networks) == list(collapse_addresses(then))


@pytest.mark.parametrize(
    ("version", "networks", "expected"),
    [
        (4, ("10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24"), ("10.0.0.0/23",)),
        (4, ("0.0.0.0/1", "128.0.0.0/1"), ("0.0.0.0/0",)),
        (6, ("fd00::/64", "fd00:0:0:1::/64", "fd00::7/128"), ("fd00::/63",)),
        (6, ("::/1", "8000::/1"), ("::/0",)),
    ],
)
def test_halves_are_joined(version: int, networks: tuple[str, ...], expected: tuple[str, ...]) -> None:
    union = NetworkUnion(version, map(ip_network, networks))
    assert tuple(map(str, union.merged.networks)) == expected
    union.remove(map(ip_network, networks))
    assert union.merged.prefixes == () and union.merged.elements == {}


def test_unchanged_networks_are_the_same_object() -> None:
    union = NetworkUnion(4, [ip_network("10.0.0.0/8")])
    before = union.merged
    union.add([ip_network("10.1.0.0/16")])
    assert union.merged is before
