"""What happens to the blocks of nodes that are gone (pure)."""

from collections.abc import Collection, Iterable, Iterator

import msgspec

from podwire.cluster.blocks import Address, Block


class DeleteBlock(msgspec.Struct, frozen=True):
    """Delete a block: another node may claim its range."""

    block: Block


class StripBlock(msgspec.Struct, frozen=True):
    """Take from a block what belongs to nodes that are gone.

    With ``owner`` the block has no owner any more; it stays because other nodes use addresses of it, until a node takes
    it over. ``addresses`` are not lent any more, the ``requests`` are deleted.
    """

    block: Block
    owner: bool
    addresses: tuple[Address, ...] = ()
    requests: tuple[str, ...] = ()


def users(blocks: Iterable[Block]) -> set[str]:
    """The nodes that have a block or an address of one, or ask for one."""
    return {node for block in blocks for node in (block.node, *block.lent.values(), *block.requests.keys()) if node}


def plan(blocks: Iterable[Block], gone: Collection[str]) -> Iterator[DeleteBlock | StripBlock]:
    """The changes after the nodes ``gone`` have left; a block without owner and borrowers is deleted."""
    for block in blocks:
        addresses = tuple(address for address, node in block.lent.items() if node in gone)
        requests = tuple(sorted(node for node in block.requests if node in gone))
        is_orphan = not block.node or block.node in gone
        if is_orphan and len(addresses) == len(block.lent):
            yield DeleteBlock(block)
        elif block.node in gone or addresses or requests:
            yield StripBlock(block, block.node in gone, addresses, requests)
