"""What becomes of the blocks of nodes that are gone."""

from ipaddress import ip_address, ip_network

from msgspec.structs import replace

from podwire.cluster.blocks import Block
from podwire.controllers.ipamblocks.plan import DeleteBlock, StripBlock, plan, users

MINE = Block(name="10-0-0-0-28", network=ip_network("10.0.0.0/28"), pool="p", node="gone", confirmed=True)
FIVE, SIX = ip_address("10.0.0.5"), ip_address("10.0.0.6")


def test_block_of_a_node_that_is_gone_is_deleted() -> None:
    assert list(plan([MINE, replace(MINE, node="here")], {"gone"})) == [DeleteBlock(MINE)]


def test_block_with_borrowed_addresses_loses_only_its_owner() -> None:
    lent = replace(MINE, lent={FIVE: "here", SIX: "gone"}, requests={"gone": 4, "here": 1})
    assert list(plan([lent], {"gone"})) == [StripBlock(lent, True, (SIX,), ("gone",))]


def test_block_without_owner_is_deleted_after_its_last_borrower() -> None:
    orphan = replace(MINE, node="", lent={FIVE: "gone"})
    assert list(plan([orphan], {"gone"})) == [DeleteBlock(orphan)]
    assert list(plan([orphan], {"another"})) == []


def test_borrower_that_is_gone_leaves_the_block() -> None:
    block = replace(MINE, node="here", lent={FIVE: "gone"}, requests={"gone": 2})
    assert list(plan([block], {"gone"})) == [StripBlock(block, False, (FIVE,), ("gone",))]
    assert users([block]) == {"here", "gone"}
