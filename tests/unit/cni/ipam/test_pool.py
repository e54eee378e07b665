"""Order, cooldown and limits of one pod CIDR's addresses."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podwire.cni.ipam.pool import COOLDOWN_S, Address, Pool
from podwire.errors import CniError


def test_addresses_are_assigned_in_order_from_the_third() -> None:
    pool = Pool(ip_network("10.244.1.0/24"))
    assert [str(pool.allocate(0)[0]) for _ in range(3)] == ["10.244.1.2", "10.244.1.3", "10.244.1.4"]
    assert pool.size == 253


def test_released_address_is_reused_after_the_rest_of_the_range() -> None:
    pool = Pool(ip_network("10.0.0.0/29"))
    first = pool.allocate(0)[0]
    pool.release(first, 1)
    assert [str(pool.allocate(100)[0]) for _ in range(5)] == [
        "10.0.0.3",
        "10.0.0.4",
        "10.0.0.5",
        "10.0.0.6",
        "10.0.0.2",
    ]


def test_the_cooldown_gives_way_to_need() -> None:
    pool = Pool(ip_network("10.0.0.0/29"))
    given_out = [pool.allocate(0)[0] for _ in range(5)]
    with pytest.raises(CniError) as failure:
        pool.allocate(0)
    assert failure.value.code == 11
    pool.release(given_out[3], 1)
    pool.release(given_out[1], 2)
    assert pool.allocate(3) == (given_out[3], True)
    assert pool.allocate(2 + COOLDOWN_S) == (given_out[1], False)


def test_an_ipv6_range_has_no_broadcast() -> None:
    pool = Pool(ip_network("fd00::/126"))
    assert [str(pool.allocate(0)[0]) for _ in range(2)] == ["fd00::2", "fd00::3"]


def test_all_addresses_that_a_cloud_assigned_are_for_pods() -> None:
    for network, addresses in (("10.0.1.9/32", 1), ("10.0.1.8/31", 2), ("10.0.1.16/28", 16)):
        pool = Pool(ip_network(network), whole=True)
        taken = {pool.allocate(0)[0] for _ in range(pool.size)}
        assert taken == set(ip_network(network)) and len(taken) == addresses


def test_a_particular_address() -> None:
    pool = Pool(ip_network("10.0.0.0/29"))
    pool.claim(ip_address("10.0.0.4"))
    with pytest.raises(CniError):
        pool.claim(ip_address("10.0.0.4"))
    for reserved in ("10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.1.2"):
        with pytest.raises(CniError):
            pool.claim(ip_address(reserved))
    assert str(pool.allocate(0)[0]) == "10.0.0.2"


def test_persisted_state_is_restored() -> None:
    pool = Pool(ip_network("10.0.0.0/29"))
    pool.restore(
        {ip_address("10.0.0.3"), ip_address("192.0.2.1")},
        {ip_address("10.0.0.4"): 100.0},
        ip_address("10.0.0.2"),
    )
    assert [str(pool.allocate(101)[0]) for _ in range(3)] == ["10.0.0.5", "10.0.0.6", "10.0.0.2"]
    assert pool.allocate(101) == (ip_address("10.0.0.4"), True)


@given(st.integers(16, 31))
def test_every_address_is_handed_out_once(bits: int) -> None:
    network = ip_network(f"10.0.0.0/{max(bits, 26)}")
    pool = Pool(network)
    got = [pool.allocate(0)[0] for _ in range(pool.size)]
    assert len(set(got)) == pool.size
    assert all(address in network for address in got)


class Churn(RuleBasedStateMachine):
    """Any order of taking, giving back and waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(ip_network("10.0.0.0/28"))
        self.held: set[Address] = set()
        self.released: dict[Address, float] = {}
        self.now = 1000.0

    @precondition(lambda self: len(self.held) < self.pool.size)
    @rule()
    def take(self) -> None:
        address, early = self.pool.allocate(self.now)
        assert address not in self.held
        cooling = self.now - self.released.get(address, -1e9) < COOLDOWN_S
        assert early == cooling
        if early:
            assert self.released[address] == min(self.released.values())
        self.held.add(address)
        self.released.pop(address, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.release(address, self.now)
        self.held.discard(address)
        self.released[address] = self.now

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.held == len(self.held)
        assert self.pool.free == self.pool.size - len(self.held)


TestChurn = Churn.TestCase
