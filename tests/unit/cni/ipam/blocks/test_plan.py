"""What a node does next with blocks, for every situation that differs."""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import pytest
from msgspec.structs import replace

from podwire.cluster.blocks import Block, BlockPool, block_name
from podwire.cni.ipam.blocks.plan import (
    AskOwner,
    BlockSituation,
    CancelRequest,
    ClaimBlock,
    ConfirmBlock,
    LendAddresses,
    RangeUsage,
    ReleaseBlock,
    ReturnAddresses,
    TakeOverBlock,
    WithdrawBlock,
    decide,
    first_free,
)
from podwire.model.expression import parse_expression

POOL = BlockPool(name="default", network=ip_network("10.0.0.0/26"), block_size=28)
SIX = BlockPool(name="six", network=ip_network("fd00::/120"), block_size=124)
A, B, C, D = (POOL.block(number) for number in range(4))


def block(network: IPv4Network | IPv6Network, node: str = "one", **fields: Any) -> Block:
    pool = "default" if network.version == 4 else "six"
    block = Block(name=block_name(network), network=network, pool=pool, node=node, confirmed=True)
    return replace(block, **fields)


def situation(*blocks: Block, used: Mapping[Any, RangeUsage] | None = None, **fields: Any) -> BlockSituation:
    """A situation of the node ``one``; ranges that ``used`` does not name are empty."""
    known = used or {}

    def usage(network: IPv4Network | IPv6Network) -> RangeUsage:
        size = 1 if network.prefixlen == network.max_prefixlen else network.num_addresses - 3
        return known.get(network, RangeUsage(size))

    fields.setdefault("pools", (POOL,))
    return BlockSituation(node="one", labels={"zone": "a"}, blocks=blocks, usage=usage, **fields)


FULL = RangeUsage(13, held=13)


def test_first_block_is_claimed_and_nothing_is_announced() -> None:
    decision = decide(situation())
    assert isinstance(decision.action, ClaimBlock) and decision.action.pool == "default"
    assert decision.action.network in (A, B, C, D)
    assert decision.routed is None


def test_claimed_block_is_confirmed_before_it_is_routed() -> None:
    pending = block(A, confirmed=False)
    decision = decide(situation(pending))
    assert decision.action == ConfirmBlock(pending)
    assert decision.routed is None
    assert decide(situation(block(A))).routed == (A,)


@pytest.mark.parametrize("other", [block(ip_network("10.0.0.0/27"), "two", confirmed=False), block(A, "two", name="x")])
def test_claimed_block_that_another_overlaps_is_withdrawn(other: Block) -> None:
    pending = block(A, confirmed=False)
    assert decide(situation(other, pending)).action == WithdrawBlock(pending)


def test_claimed_block_in_a_node_cidr_is_withdrawn() -> None:
    pending = block(A, confirmed=False)
    assert decide(situation(pending, peer_ranges=(ip_network("10.0.0.0/24"),))).action == WithdrawBlock(pending)


def test_both_families_have_a_block_before_either_is_routed() -> None:
    four, six = block(A), block(SIX.block(3))
    first = decide(situation(four, pools=(POOL, SIX)))
    assert first.routed is None
    assert isinstance(first.action, ClaimBlock) and first.action.pool == "six"
    assert decide(situation(four, six, pools=(POOL, SIX))).routed == (A, six.network)


def test_next_block_is_claimed_when_few_addresses_are_free() -> None:
    busy = decide(situation(block(A), used={A: RangeUsage(13, held=12)}))
    assert isinstance(busy.action, ClaimBlock) and busy.action.network != A
    assert decide(situation(block(A), used={A: RangeUsage(13, held=11)})).action is None
    cooling = decide(situation(block(A), used={A: RangeUsage(13, held=6, cooling=6)}))
    assert isinstance(cooling.action, ClaimBlock)


def test_claims_avoid_blocks_node_cidrs_and_refused_ranges() -> None:
    decision = decide(situation(block(A, "two"), peer_ranges=(B,), refused=frozenset({C})))
    assert decision.action == ClaimBlock(D, "default")


def test_limit_of_blocks_is_kept() -> None:
    assert decide(situation(block(A), used={A: FULL}, most=1, strict=True)).action is None


def test_first_free_jumps_over_wide_ranges() -> None:
    pool = BlockPool(name="wide", network=ip_network("10.0.0.0/8"), block_size=29)
    taken = (ip_network("10.0.0.0/9"), ip_network("10.128.0.0/16"), ip_network("172.16.0.0/12"))
    assert first_free(pool, taken, 5) == ip_network("10.129.0.0/29")
    assert first_free(pool, (ip_network("10.128.0.0/9"),), pool.count - 1) == ip_network("10.0.0.0/29")
    assert first_free(pool, (ip_network("10.0.0.0/7"),), 0) is None


def test_nodes_that_start_together_try_different_blocks() -> None:
    pool = BlockPool(name="wide", network=ip_network("10.0.0.0/8"), block_size=26)
    claims = {decide(replace(situation(pools=(pool,)), node=f"node-{n}")).action for n in range(100)}
    assert len(claims) > 95


def test_empty_block_is_released_but_the_first_one() -> None:
    first, second = block(A), block(B)
    decision = decide(situation(first, second, announced=(A, B)))
    assert decision.action == ReleaseBlock(second)
    assert (decision.routed, decision.closed) == ((A,), frozenset({B}))
    assert decide(situation(first, second, announced=(B, A))).action == ReleaseBlock(first)
    assert decide(situation(first, announced=(A,))).action is None


@pytest.mark.parametrize("usage", [RangeUsage(13, held=1), RangeUsage(13, cooling=1), RangeUsage(13, away=1)])
def test_block_in_use_is_not_released(usage: RangeUsage) -> None:
    assert decide(situation(block(A), block(B), used={B: usage}, announced=(A, B))).action is None


def test_disabled_pool_gives_no_addresses_and_its_empty_blocks_go() -> None:
    disabled = replace(POOL, disabled=True)
    held = decide(situation(block(A), used={A: RangeUsage(13, held=1)}, pools=(disabled,), announced=(A,)))
    assert (held.routed, held.closed, held.action) == ((A,), frozenset({A}), None)
    empty = decide(situation(block(A), pools=(disabled,), announced=(A,)))
    assert empty.action == ReleaseBlock(block(A))
    assert empty.routed == ()
    assert decide(situation(block(A), pools=(), announced=(A,))).action == ReleaseBlock(block(A))


def test_pool_for_other_nodes_is_not_used() -> None:
    zone = replace(POOL, nodes=parse_expression("zone == 'b'", "test", "nodes"))
    assert decide(situation(pools=(zone,))).action is None
    assert decide(situation(block(A), used={A: RangeUsage(13, held=1)}, pools=(zone,))).closed == {A}


def test_block_of_a_node_that_is_gone_is_taken_over() -> None:
    orphan = block(A, "", lent={ip_address("10.0.0.3"): "two"})
    assert decide(situation(orphan)).action == TakeOverBlock(orphan)
    mine = decide(situation(replace(orphan, node="one")))
    assert mine.away == {ip_address("10.0.0.3")}


OTHERS = tuple(block(network, "two") for network in (B, C, D))


def test_owner_is_asked_when_pods_wait() -> None:
    full = {A: FULL}
    decision = decide(situation(block(A), *OTHERS, used=full, waiting=True))
    assert isinstance(decision.action, AskOwner) and decision.action.block in OTHERS
    assert decide(situation(block(A), *OTHERS, used=full)).action is None
    assert decide(situation(block(A), *OTHERS, used=full, waiting=True, strict=True)).action is None
    names = frozenset(each.name for each in OTHERS)
    assert decide(situation(block(A), *OTHERS, used=full, waiting=True, unanswered=names)).action is None


def test_one_request_at_a_time_and_late_ones_are_cancelled() -> None:
    asked = replace(OTHERS[0], requests={"one": 4})
    blocks = (block(A), asked, *OTHERS[1:])
    assert decide(situation(*blocks, used={A: FULL}, waiting=True)).action is None
    assert decide(situation(*blocks, used={A: FULL}, waiting=True, late=True)).action == CancelRequest(asked)


def test_owner_lends_what_it_does_not_need() -> None:
    asked = block(A, requests={"two": 4})
    assert decide(situation(asked)).action == LendAddresses(asked, "two", 4)
    assert decide(situation(asked, used={A: RangeUsage(13, held=11)})).action == LendAddresses(asked, "two", 1)
    assert decide(situation(asked, used={A: FULL})).action == LendAddresses(asked, "two", 0)
    assert decide(situation(asked, strict=True)).action == LendAddresses(asked, "two", 0)
    assert decide(situation(asked, pools=())).action == LendAddresses(asked, "two", 0)


def test_borrowed_addresses_are_routed_after_blocks() -> None:
    address = ip_address("10.0.0.20")
    lender = replace(OTHERS[0], lent={address: "one"})
    used = {A: RangeUsage(13, held=13), ip_network(address): RangeUsage(1, held=1)}
    decision = decide(situation(lender, block(A), *OTHERS[1:], used=used))
    assert decision.routed == (A, ip_network(address))
    assert decision.away == frozenset()


def test_borrowed_address_is_returned_when_others_are_free() -> None:
    address = ip_address("10.0.0.20")
    lender = replace(OTHERS[0], lent={address: "one"})
    decision = decide(situation(lender, block(A), *OTHERS[1:], used={A: RangeUsage(13, held=9)}))
    assert decision.action == ReturnAddresses(lender, (address,))
    assert (decision.routed, decision.closed) == ((A,), frozenset({ip_network(address)}))
    assert decide(situation(lender, block(A), *OTHERS[1:], used={A: FULL})).action is None
    in_use = {ip_network(address): RangeUsage(1, held=1)}
    assert decide(situation(lender, block(A), *OTHERS[1:], used=in_use)).action is None


def test_deleted_block_with_pods_is_claimed_again() -> None:
    decision = decide(situation(used={A: RangeUsage(13, held=2)}, announced=(A,)))
    assert decision.action == ClaimBlock(A, "default")
    assert (decision.routed, decision.closed) == ((A,), frozenset({A}))


def test_addresses_that_borrowers_still_announce_stay_away() -> None:
    single = ip_network("10.0.0.5/32")
    decision = decide(situation(block(A), used={A: RangeUsage(13, held=2)}, announced=(A,), peer_ranges=(single,)))
    assert decision.away == {ip_address("10.0.0.5")}
    again = decide(situation(block(A, confirmed=False), peer_ranges=(single,)))
    assert isinstance(again.action, ConfirmBlock)


def test_block_with_pods_that_another_node_has_is_reported() -> None:
    decision = decide(situation(block(A, "two"), block(B), used={A: RangeUsage(13, held=2)}, announced=(A, B)))
    assert decision.stolen == (A,)
    assert decision.routed == (B,)


def test_node_cidr_with_pods_stays_routed_and_closed() -> None:
    former = ip_network("10.9.0.0/24")
    used = {former: RangeUsage(253, held=3)}
    decision = decide(situation(block(A), used=used, former=(former,)))
    assert (decision.routed, decision.closed) == ((A, former), frozenset({former}))
    assert decide(situation(block(A), former=(former,))).routed == (A,)
