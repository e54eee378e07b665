"""Writes the actions of :mod:`podwire.cni.ipam.blocks.plan` to the API.

A claim is a creation; every other write names the version of the object that it changes, so a write that came too late
changes nothing.
"""

from collections.abc import Sequence
from typing import Any

from podwire.cluster.blocks import Address, Block, block_name
from podwire.cni.ipam.blocks.plan import (
    AskOwner,
    BlockAction,
    CancelRequest,
    ClaimBlock,
    ConfirmBlock,
    LendAddresses,
    ReleaseBlock,
    ReturnAddresses,
    TakeOverBlock,
    WithdrawBlock,
    new_block,
)
from podwire.kube.client import Client
from podwire.kube.resources import IPAMBLOCKS


def block_of(action: BlockAction) -> str:
    """The name of the block that an action writes."""
    return block_name(action.network) if isinstance(action, ClaimBlock) else action.block.name


async def write(client: Client, node: str, action: BlockAction, addresses: Sequence[Address] = ()) -> None:
    """Writes an action of a node; ``addresses`` are those that an answer lends.

    Raises: AlreadyExists, Conflict and NotFound when another node was faster; ApiError, ApiUnreachable.
    """
    if isinstance(action, ClaimBlock):
        await client.create(IPAMBLOCKS, new_block(action.network, action.pool, node))
    elif isinstance(action, WithdrawBlock | ReleaseBlock):
        await client.delete_unchanged(IPAMBLOCKS, action.block.meta)
    else:
        await _patch(client, action.block, changes(action, node, addresses))


def changes(
    action: TakeOverBlock | ConfirmBlock | AskOwner | CancelRequest | LendAddresses | ReturnAddresses,
    node: str,
    addresses: Sequence[Address],
) -> dict[str, Any]:
    """The changed fields of a block's spec, as a merge patch."""
    match action:
        case TakeOverBlock():
            return {"node": node, "lent": {str(address): None for address in action.block.lent_to(node)}}
        case ConfirmBlock():
            return {"confirmed": True}
        case AskOwner(count=count):
            return {"requests": {node: count}}
        case CancelRequest():
            return {"requests": {node: None}}
        case LendAddresses(borrower=borrower):
            return {"lent": {str(address): borrower for address in addresses}, "requests": {borrower: None}}
        case ReturnAddresses(addresses=returned):
            return {"lent": {str(address): None for address in returned}}


async def _patch(client: Client, block: Block, spec: dict[str, Any]) -> None:
    body = {"metadata": {"uid": block.meta.uid, "resourceVersion": block.meta.resource_version}, "spec": spec}
    await client.patch(IPAMBLOCKS, block.name, body)
