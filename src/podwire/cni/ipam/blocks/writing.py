"""Writes the actions of :mod:`podwire.cni.ipam.blocks.plan` to the API.

A claim is a creation; every other write names the version of the object that it changes, so a write that came too late
changes nothing.
"""

from collections.abc import Sequence
from typing import Any

from podwire.cluster.blocks import Address, Block, block_name
from podwire.cni.ipam.blocks.plan import (
    Action,
    Answer,
    Ask,
    Cancel,
    Claim,
    Confirm,
    Release,
    Return,
    TakeOver,
    Withdraw,
    new_block,
)
from podwire.kube.client import Client
from podwire.kube.resources import IPAMBLOCKS


def block_of(action: Action) -> str:
    """The name of the block that an action writes."""
    return block_name(action.network) if isinstance(action, Claim) else action.block.name


async def write(client: Client, node: str, action: Action, addresses: Sequence[Address] = ()) -> None:
    """Writes an action of a node; ``addresses`` are those that an answer lends.

    Raises: AlreadyExists, Conflict and NotFound when another node was faster; ApiError, ApiUnreachable.
    """
    if isinstance(action, Claim):
        await client.create(IPAMBLOCKS, new_block(action.network, action.pool, node))
    elif isinstance(action, Withdraw | Release):
        await client.delete_unchanged(IPAMBLOCKS, action.block.meta)
    else:
        await _patch(client, action.block, changes(action, node, addresses))


def changes(
    action: TakeOver | Confirm | Ask | Cancel | Answer | Return, node: str, addresses: Sequence[Address]
) -> dict[str, Any]:
    """The changed fields of a block's spec, as a merge patch."""
    match action:
        case TakeOver():
            return {"node": node, "lent": {str(address): None for address in action.block.lent_to(node)}}
        case Confirm():
            return {"confirmed": True}
        case Ask(count=count):
            return {"requests": {node: count}}
        case Cancel():
            return {"requests": {node: None}}
        case Answer(borrower=borrower):
            return {"lent": {str(address): borrower for address in addresses}, "requests": {borrower: None}}
        case Return(addresses=returned):
            return {"lent": {str(address): None for address in returned}}


async def _patch(client: Client, block: Block, spec: dict[str, Any]) -> None:
    body = {"metadata": {"uid": block.meta.uid, "resourceVersion": block.meta.resource_version}, "spec": spec}
    await client.patch(IPAMBLOCKS, block.name, body)
