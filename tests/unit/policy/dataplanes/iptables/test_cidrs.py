from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from podwire.model.policy import IPBlock
from podwire.policy.compiled import CompiledPolicy, CompiledRule
from podwire.policy.dataplanes.iptables import cidrs
from podwire.policy.ports import PortTable
from podwire.policy.profile import Profile, ProfileKey

KEY = ProfileKey(direction="Ingress")


def profile(*blocks: IPBlock) -> Profile:
    rules = tuple(CompiledRule(tier="Namespace", policy="shop/db", place=n, blocks=(b,)) for n, b in enumerate(blocks))
    policy = CompiledPolicy(key="shop/db", tier="Namespace", subject=1, rules={"Ingress": rules}, names={})
    return Profile(KEY, (policy,))


def networks(profile: Profile, family: int) -> tuple[dict[str, PortTable], PortTable]:
    nets, rest = cidrs.networks(profile, family)
    return {network: group.table for network, group in nets.items()}, rest.table


def table_of_longest(nets: dict[str, PortTable], rest: PortTable, address: str) -> PortTable:
    """What the longest network says, as a kernel looks it up."""
    holding = [net for net in nets if ip_address(address) in ip_network(net)]
    return nets[max(holding, key=lambda net: ip_network(net).prefixlen)] if holding else rest


def test_networks_that_are_nested_stay_as_they_are() -> None:
    created = profile(IPBlock(cidr="10.0.0.0/8", excepted=("10.1.0.0/16",)), IPBlock(cidr="10.1.2.0/24"))
    nets, rest = networks(created, 4)
    assert list(nets) == ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"]
    assert nets["10.1.0.0/16"] == rest == created.peers.default
    assert networks(created, 6) == ({}, created.peers.default)


def test_a_block_of_all_addresses_becomes_the_default() -> None:
    created = profile(IPBlock(cidr="0.0.0.0/0", excepted=("10.0.0.0/8",)))
    nets, rest = networks(created, 4)
    assert list(nets) == ["10.0.0.0/8"]
    assert (rest, nets["10.0.0.0/8"]) == (created.at("192.0.2.1"), created.peers.default)
    assert networks(created, 6)[1] == created.peers.default


def test_a_network_without_addresses_of_its_own_is_left_out() -> None:
    nets, _ = networks(profile(IPBlock(cidr="10.0.0.0/31", excepted=("10.0.0.0/32", "10.0.0.1/32"))), 4)
    assert list(nets) == ["10.0.0.0", "10.0.0.1"]


LENGTHS = st.integers(0, 32)
NETWORKS = st.tuples(st.integers(0, 15), LENGTHS).map(
    lambda p: str(ip_network((p[0] << 28 | 0xA0A0A0, p[1]), strict=False))
)
BLOCKS = st.builds(IPBlock, cidr=NETWORKS, excepted=st.lists(NETWORKS, max_size=3).map(tuple))


@given(st.lists(BLOCKS, max_size=5), st.lists(st.integers(0, 2**32 - 1), max_size=8))
def test_every_address_fares_as_its_profile_says(blocks: list[IPBlock], more: list[int]) -> None:
    created = profile(*blocks)
    nets, rest = networks(created, 4)
    borders = [border for net in nets for border in (ip_network(net)[0], ip_network(net)[-1])]
    for address in map(str, (*borders, *map(ip_address, more))):
        assert table_of_longest(nets, rest, address) == created.at(address)
