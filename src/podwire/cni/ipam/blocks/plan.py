"""What one node does next with blocks: claim, confirm, lend, borrow or release (pure).

A node claims a block by creating its object, which only one node can, and uses the block when it has seen its own
object in the watch and no older block overlaps. It claims the next block when fewer addresses are free than a reserve
of an eighth of a block. A block without pods is released when the others have twice the reserve; the first block of a
family stays, because the node's own address in tunnels is in it. A block whose pool is disabled, deleted or for other
nodes gives no new addresses, and is released when it is empty.

When the pools have no free block, a node asks the owners of blocks, one after the other, for single addresses. The
owner lends addresses that it does not use, or none. The borrower gives an address back when no pod has it and its own
blocks have addresses. So an owner never has to ask anyone about an address of its blocks, and goes on while the API is
away.

At most one action is planned at a time: after it, everything is looked at again. Cost: one pass over all blocks.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network

import msgspec

from podwire.cluster.blocks import Address, Block, BlockPool, Network, block_name, overlapping

_RESERVE_SHARE = 8
_RELEASE_RESERVES = 2
ASKED_AT_ONCE = 4
"""The number of addresses that a node borrows with one request."""


class RangeUsage(msgspec.Struct, frozen=True, gc=False):
    """The addresses of a range: for pods at all, held by pods, in their cooldown, and lent to other nodes."""

    size: int
    held: int = 0
    cooling: int = 0
    away: int = 0

    @property
    def available(self) -> int:
        """The addresses that a pod can get now, without those in their cooldown."""
        return self.size - self.held - self.cooling - self.away

    @property
    def is_empty(self) -> bool:
        """Whether no pod has an address or had one recently, and none is lent."""
        return not (self.held or self.cooling or self.away)


class ClaimBlock(msgspec.Struct, frozen=True):
    """Create the object of a block."""

    network: Network
    pool: str


class TakeOverBlock(msgspec.Struct, frozen=True):
    """Claim a block whose node is gone."""

    block: Block


class ConfirmBlock(msgspec.Struct, frozen=True):
    """Mark a claimed block as one that no other block overlaps."""

    block: Block


class WithdrawBlock(msgspec.Struct, frozen=True):
    """Delete a claimed block that another block overlaps."""

    block: Block


class ReleaseBlock(msgspec.Struct, frozen=True):
    """Delete an empty block, after peers do not route it to this node any more."""

    block: Block


class AskOwner(msgspec.Struct, frozen=True):
    """Ask the owner of a block for addresses."""

    block: Block
    count: int


class CancelRequest(msgspec.Struct, frozen=True):
    """Take back a request that the owner of a block did not answer."""

    block: Block


class LendAddresses(msgspec.Struct, frozen=True):
    """Lend up to ``count`` addresses of a block to a node, and delete its request."""

    block: Block
    borrower: str
    count: int


class ReturnAddresses(msgspec.Struct, frozen=True):
    """Give borrowed addresses of a block back, after peers do not route them to this node any more."""

    block: Block
    addresses: tuple[Address, ...]


BlockAction = (
    ClaimBlock
    | TakeOverBlock
    | ConfirmBlock
    | WithdrawBlock
    | ReleaseBlock
    | AskOwner
    | CancelRequest
    | LendAddresses
    | ReturnAddresses
)


class BlockSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows: the objects, its own ranges and their usage.

    ``pools`` are the valid ones, ``peer_ranges`` those that other nodes announce, ``announced`` those that this node
    announces, ``former`` its node CIDRs. ``waiting``: pods wait for addresses. ``unanswered`` are the blocks that did
    not lend an address recently; ``late``: so are those with a request of this node. ``refused`` are the blocks that
    the API refused recently. ``most`` is the number of blocks of a family that a node may have.
    """

    node: str
    labels: Mapping[str, str]
    pools: Sequence[BlockPool]
    blocks: Sequence[Block]
    usage: Callable[[Network], RangeUsage]
    peer_ranges: Sequence[Network] = ()
    announced: Sequence[Network] = ()
    former: Sequence[Network] = ()
    waiting: bool = False
    unanswered: frozenset[str] = frozenset()
    late: bool = False
    refused: frozenset[Network] = frozenset()
    strict: bool = False
    most: int = 20


class BlockDecision(msgspec.Struct, frozen=True):
    """What the node has, and what it does next.

    ``routed`` are the ranges that peers route to this node, None while a family has none. ``closed`` give no new
    addresses. ``away`` are addresses of its blocks that other nodes use. ``stolen`` are ranges with pods of this node
    that another node has now.
    """

    routed: tuple[Network, ...] | None
    closed: frozenset[Network]
    away: frozenset[Address]
    action: BlockAction | None
    stolen: tuple[Network, ...] = ()


def decide(situation: BlockSituation) -> BlockDecision:
    """What the node does next."""
    return _Planner(situation).decide()


class _Planner:
    """The plan for one situation."""

    def __init__(self, situation: BlockSituation) -> None:
        self._s = situation
        self._usable = {pool.name: pool for pool in situation.pools if pool.is_for(situation.labels)}
        order = {network: index for index, network in enumerate(situation.announced)}
        own = [block for block in situation.blocks if block.node == situation.node]
        self._pending = [block for block in own if not block.confirmed]
        self._mine = sorted(
            (block for block in own if block.confirmed),
            key=lambda block: (order.get(block.network, len(order)), block.network.version, int(block.network[0])),
        )
        borrowed: list[tuple[Network, Block]] = [
            (ip_network(address), block)
            for block in situation.blocks
            if block.lent and block.node != situation.node
            for address in block.lent_to(situation.node)
        ]
        self._borrowed = sorted(
            borrowed, key=lambda entry: (order.get(entry[0], len(order)), entry[0].version, int(entry[0][0]))
        )
        self._wide_peer_ranges: list[Network] = []
        self._borrowed_by_peers: list[Network] = []
        for network in situation.peer_ranges:
            (self._borrowed_by_peers if _is_single(network) else self._wide_peer_ranges).append(network)
        self._former, self._stolen = self._without_block()

    def decide(self) -> BlockDecision:
        action = next(self._actions(), None)
        leaving = _leaving(action)
        ranges = [block.network for block in self._mine] + [network for network, _ in self._borrowed]
        closed = {block.network for block in self._mine if block.pool not in self._usable}
        closed |= {network for network, block in self._borrowed if block.pool not in self._usable}
        routed = tuple(network for network in (*ranges, *self._former) if network not in leaving)
        have = {network.version for network in ranges}
        complete = self._s.announced or {pool.network.version for pool in self._usable.values()} <= have
        return BlockDecision(
            routed=routed if complete else None,
            closed=frozenset(closed | leaving | set(self._former)),
            away=self._away(),
            action=action,
            stolen=self._stolen,
        )

    def _away(self) -> frozenset[Address]:
        """The addresses that are lent, and those that other nodes still announce after an object was lost."""
        lent = {address for block in self._mine for address in block.lent}
        networks = [block.network for block in self._mine]
        singles = (single for single in self._borrowed_by_peers if any(overlapping(single, networks)))
        return frozenset(lent | {single[0] for single in singles})

    def _without_block(self) -> tuple[tuple[Network, ...], tuple[Network, ...]]:
        """The ranges with pods for which this node has no block: its own all the same, and those of other nodes."""
        have = {block.network for block in self._mine} | {network for network, _ in self._borrowed}
        occupied = [block.network for block in self._s.blocks if block.node != self._s.node]
        former: list[Network] = []
        stolen: list[Network] = []
        for network in dict.fromkeys((*self._s.announced, *self._s.former)):
            if network not in have and self._s.usage(network).held:
                is_taken = any(overlapping(network, occupied)) or any(overlapping(network, self._wide_peer_ranges))
                (stolen if is_taken else former).append(network)
        return tuple(former), tuple(stolen)

    def _actions(self) -> Iterator[BlockAction]:
        yield from map(self._checked, self._pending)
        yield from self._claims_again()
        yield from self._answers()
        for version in sorted({pool.network.version for pool in self._usable.values()}):
            if self._available(self._open(version)) < self._reserve(version):
                yield from self._more(version)
        yield from self._returns()
        yield from self._releases()

    def _checked(self, block: Block) -> BlockAction:
        networks = [other.network for other in self._s.blocks if other.name != block.name]
        overlaps = any(overlapping(block.network, networks)) or any(overlapping(block.network, self._wide_peer_ranges))
        return WithdrawBlock(block) if overlaps else ConfirmBlock(block)

    def _claims_again(self) -> Iterator[BlockAction]:
        """Blocks of this node with pods, whose objects were deleted from the API."""
        pending = {block.network for block in self._pending}
        for network in self._former:
            for pool in self._s.pools:
                fits = network.version == pool.network.version and network.prefixlen == pool.block_size
                known = network in pending or network in self._s.refused
                if fits and not known and any(overlapping(network, [pool.network])):
                    yield ClaimBlock(network, pool.name)

    def _answers(self) -> Iterator[BlockAction]:
        for block in self._mine:
            for borrower, count in sorted(block.requests.items()):
                lends = not self._s.strict and block.pool in self._usable
                spare = self._s.usage(block.network).available - 1 + self._kept_for_answer(block)
                yield LendAddresses(block, borrower, max(0, min(count, spare, 2 * ASKED_AT_ONCE)) if lends else 0)

    def _kept_for_answer(self, block: Block) -> int:
        """The addresses that an agent took from its pods before it was killed, without an answer in the API."""
        usage = self._s.usage(block.network)
        return usage.away - sum(address in block.network for address in self._away())

    def _reserve(self, version: int) -> int:
        pools = (pool for pool in self._usable.values() if pool.network.version == version)
        return max(1, min((1 << (pool.network.max_prefixlen - pool.block_size)) for pool in pools) // _RESERVE_SHARE)

    def _open(self, version: int) -> list[Network]:
        """The node's blocks of a family that give new addresses."""
        return [b.network for b in self._mine if b.network.version == version and b.pool in self._usable]

    def _lent_here(self, version: int) -> list[Network]:
        """The borrowed addresses of a family that pods may get."""
        return [n for n, block in self._borrowed if n.version == version and block.pool in self._usable]

    def _available(self, networks: Iterable[Network]) -> int:
        return sum(self._s.usage(network).available for network in networks)

    def _more(self, version: int) -> Iterator[BlockAction]:
        """The next block of a family; without one, addresses of other nodes if pods wait."""
        count = sum(block.network.version == version for block in (*self._mine, *self._pending))
        if count < self._s.most:
            for pool in self._usable.values():
                if pool.network.version == version:
                    yield from self._takes_over(pool)
                    yield from self._claims(pool)
        usable = (*self._open(version), *self._lent_here(version))
        if not self._s.strict and (self._s.waiting or not usable) and self._available(usable) <= 0:
            yield from self._asks(version)

    def _takes_over(self, pool: BlockPool) -> Iterator[BlockAction]:
        for block in self._s.blocks:
            if not block.node and block.confirmed and block.pool == pool.name:
                yield TakeOverBlock(block)

    def _claims(self, pool: BlockPool) -> Iterator[BlockAction]:
        occupied = (*(block.network for block in self._s.blocks), *self._s.peer_ranges, *self._s.refused)
        network = first_free(pool, occupied, _start(self._s.node, pool))
        if network is not None:
            yield ClaimBlock(network, pool.name)

    def _asks(self, version: int) -> Iterator[BlockAction]:
        asked = [block for block in self._s.blocks if self._s.node in block.requests]
        if asked:
            if self._s.late:
                yield CancelRequest(asked[0])
            return
        lenders = [
            block
            for block in self._s.blocks
            if block.node not in ("", self._s.node)
            and block.confirmed
            and block.network.version == version
            and block.pool in self._usable
            and block.name not in self._s.unanswered
        ]
        # Nodes ask in different orders, so that not all of them ask the same owner. An answer changes the version of
        # the block and so the order: an agent that was started again asks another owner.
        order = {block.name: _digest(f"{self._s.node} {block.name} {block.meta.resource_version}") for block in lenders}
        for block in sorted(lenders, key=lambda block: order[block.name]):
            yield AskOwner(block, ASKED_AT_ONCE)

    def _returns(self) -> Iterator[BlockAction]:
        for network, block in reversed(self._borrowed):
            if not self._s.usage(network).is_empty or self._s.waiting:
                continue
            version = network.version
            if block.pool not in self._usable or self._available(self._open(version)) >= self._reserve(version):
                yield ReturnAddresses(block, (network[0],))

    def _releases(self) -> Iterator[BlockAction]:
        for block in reversed(self._mine):
            network = block.network
            if not self._s.usage(network).is_empty or block.lent or block.requests:
                continue
            if block.pool not in self._usable:
                yield ReleaseBlock(block)
                continue
            first, *further = self._open(network.version)
            remaining = [first, *(other for other in further if other != network)]
            reserve = _RELEASE_RESERVES * self._reserve(network.version)
            if network != first and self._available(remaining) >= reserve:
                yield ReleaseBlock(block)


def _is_single(network: Network) -> bool:
    return network.prefixlen == network.max_prefixlen


def _leaving(action: BlockAction | None) -> set[Network]:
    """The ranges that an action gives up."""
    if isinstance(action, ReleaseBlock):
        return {action.block.network}
    if isinstance(action, ReturnAddresses):
        return {ip_network(address) for address in action.addresses}
    return set()


def first_free(pool: BlockPool, occupied: Iterable[Network], start: int) -> Network | None:
    """The first block of a pool, from a number on, that shares no address with a range; None: there is none."""
    ends: dict[int, int] = {}
    for network in overlapping(pool.network, occupied):
        shift = network.max_prefixlen - pool.block_size
        first = max(0, (int(network.network_address) - int(pool.network.network_address)) >> shift)
        last = min(pool.count - 1, (int(network.broadcast_address) - int(pool.network.network_address)) >> shift)
        ends[first] = max(last, ends.get(first, 0))
    intervals = sorted(ends.items())
    for begin, end in ((start, pool.count), (0, start)):
        number = begin
        for first, last in intervals:
            if first > number:
                break
            number = max(number, last + 1)
        if number < end:
            return pool.block(number)
    return None


def _start(node: str, pool: BlockPool) -> int:
    """Where a node begins to look: nodes that start together try different blocks."""
    return _digest(f"{node} {pool.name}") % pool.count


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def new_block(network: Network, pool: str, node: str) -> dict[str, object]:
    """The object of a block that a node claims."""
    return {
        "apiVersion": "podwire.io/v1alpha1",
        "kind": "IPAMBlock",
        "metadata": {"name": block_name(network)},
        "spec": {"cidr": str(network), "pool": pool, "node": node},
    }
