"""Keeps the blocks of one node: follows pools and blocks, and carries out what :mod:`.plan` decides.

Guarantees: 1. every write is a creation that only one node can make, or names the version that it changes, so of two
nodes only one succeeds; 2. after a write, the block is read again, and nothing is planned until the watch shows it, so
the outcome of a write whose answer was lost is known before the next write; 3. a range is announced on the Node before
pods get its addresses, and is removed from the Node before its block is released; 4. while the API is away, pods get
addresses of the blocks that the node has; 5. an agent that was killed between two steps continues from the objects;
6. the next check is at most 30 s after the last one, and within 50 ms after each change of an object or an address.

Cost: one watch of all blocks and one of the pools; 0.3 ms for a check with 1,000 blocks, 4 ms when it claims one
(measured).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from podwire.cluster.blocks import Address, Block, Network, PoolReader, read_block
from podwire.cluster.names import NODE_POD_BLOCKS
from podwire.cni.ipam.blocks.plan import (
    AskOwner,
    BlockAction,
    BlockDecision,
    BlockSituation,
    ClaimBlock,
    LendAddresses,
    RangeUsage,
    decide,
)
from podwire.cni.ipam.blocks.writing import block_of, write
from podwire.errors import (
    AlreadyExists,
    ApiError,
    ApiUnreachable,
    CniError,
    ConfigError,
    Conflict,
    NotFound,
    ProtocolError,
)
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder, reference
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import IPAMBLOCKS, IPPOOLS
from podwire.model.bgp import IpPoolObject
from podwire.model.ipam import IpamBlock
from podwire.model.node import Node
from podwire.observe.log import Log

REFUSED = "ObjectRefused"
STOLEN = "PodAddressesOfOtherNode"
_QUIET_S = 0.05
_LOOK_S = 30.0
_LATE_S = 5.0
"""An owner that does not answer a request in this time is not asked again for :data:`_UNANSWERED_S`."""
_UNANSWERED_S = 30.0
_REFUSED_S = 60.0
_SEEN_S = 5.0
_SEEN_POLL_S = 0.02
_RETRY_S = 1.0


class BlockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``strict``: addresses are neither lent nor borrowed. ``most`` is the limit of a node's blocks of a family."""

    strict: bool = False
    most: int = 20


class BlockLeases(Protocol):
    """The address leases of the node, as far as blocks concern them."""

    closed: frozenset[Network]
    changed: Callable[[], None]

    def usages(self) -> Callable[[Network], RangeUsage]: ...

    def lend(self, addresses: frozenset[Address]) -> None: ...

    def spare(self, network: Network, count: int) -> tuple[Address, ...]: ...

    @property
    def away(self) -> frozenset[Address]: ...


Announce = Callable[[Mapping[str, str]], Awaitable[bool]]


class BlockKeeper:
    """The blocks of the node ``node``; ``nodes`` returns all Nodes, ``announce`` writes annotations of the own one."""

    def __init__(
        self,
        client: Client,
        node: str,
        nodes: Callable[[], Mapping[str, Node]],
        leases: BlockLeases,
        announce: Announce,
        settings: BlockSettings,
    ) -> None:
        self.pools: Informer[IpPoolObject] = Informer(client, IPPOOLS)
        self.blocks: Informer[IpamBlock] = Informer(client, IPAMBLOCKS)
        self.events: EventRecorder | None = None
        self.waiting = 0
        """The number of pods that wait for addresses."""
        self.problem = ""
        """Why the node has no range for pods; empty when it has one, or is about to claim one."""
        self._client = client
        self._node = node
        self._nodes = nodes
        self._leases = leases
        self._announce = announce
        self._settings = settings
        self._changed = asyncio.Event()
        self._reader = PoolReader()
        self._read: dict[str, tuple[IpamBlock, Block]] = {}
        self._peer_ranges: tuple[Network, ...] | None = None
        self._log = Log("ipam")
        self._unanswered: dict[str, float] = {}
        self._refused: dict[Network, float] = {}
        self._asked: tuple[str, float] | None = None
        """The block with a request of this node, and when it was written."""
        self._unsettled = ""
        """The block whose last write has no known outcome yet."""
        self._problems: dict[tuple[str, str], str] = {}
        """What was reported last, by kind and name."""
        leases.changed = self.disturbed
        for informer in (self.pools, self.blocks):
            informer.subscribe(lambda _key, _old, _new: self.disturbed())

    def disturbed(self) -> None:
        """Requests a look at objects and addresses."""
        self._changed.set()

    def nodes_changed(self) -> None:
        """Requests a look with the ranges that Nodes announce now."""
        self._peer_ranges = None
        self.disturbed()

    async def follow_pools(self) -> None:
        """Follows the pools, until cancelled."""
        await follow_when_served(self._client, self.pools)

    async def follow_blocks(self) -> None:
        """Follows the blocks, until cancelled."""
        await follow_when_served(self._client, self.blocks)

    async def run(self) -> None:
        """Keeps the node's blocks, until cancelled."""
        await self.pools.synced.wait()
        await self.blocks.synced.wait()
        while True:
            self._changed.clear()
            wait_s = await self._step()
            await self._client.clock.sleep(_QUIET_S)
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _step(self) -> float:
        """One look and at most one action; returns after how many seconds the next look is due at the latest."""
        node = self._nodes().get(self._node)
        if node is None or not await self._settled():
            return _RETRY_S
        situation = self._situation(node)
        decision = decide(situation)
        self._note_problem(situation, decision)
        self._report_stolen(node, decision)
        try:
            if not isinstance(decision.action, LendAddresses):
                self._leases.lend(decision.away)
        except CniError as failure:
            self._log.warning("cannot write the address ledger", problem=failure)
            return _RETRY_S
        self._leases.closed = decision.closed
        if decision.routed is not None:
            text = ",".join(map(str, decision.routed))
            if node.metadata.annotations.get(NODE_POD_BLOCKS) != text and not await self._announce(
                {NODE_POD_BLOCKS: text}
            ):
                return _RETRY_S
        if decision.action is None:
            return _LATE_S if self._asked is not None or self.waiting else _LOOK_S
        await self._carry_out(decision)
        return 0.0

    def _situation(self, node: Node) -> BlockSituation:
        now = self._client.clock.monotonic()
        self._unanswered = {name: at for name, at in self._unanswered.items() if now - at < _UNANSWERED_S}
        self._refused = {network: at for network, at in self._refused.items() if now - at < _REFUSED_S}
        blocks = self._read_blocks()
        pools = self._reader.read(self.pools.objects.values())
        self._report(IPPOOLS.kind, {(IPPOOLS.kind, name): text for name, text in self._reader.problems.items()})
        self._note_answers(blocks, now)
        return BlockSituation(
            node=self._node,
            labels=node.metadata.labels,
            pools=pools,
            blocks=blocks,
            usage=self._leases.usages(),
            peer_ranges=self._ranges_of_peers(),
            announced=node.pod_networks if NODE_POD_BLOCKS in node.metadata.annotations else (),
            former=node.spec.networks,
            waiting=self.waiting > 0,
            unanswered=frozenset(self._unanswered),
            late=self._asked is not None and now - self._asked[1] >= _LATE_S,
            refused=frozenset(self._refused),
            strict=self._settings.strict,
            most=self._settings.most,
        )

    def _read_blocks(self) -> tuple[Block, ...]:
        """All valid blocks; each version of an object is read once."""
        problems: dict[tuple[str, str], str] = {}
        known, self._read = self._read, {}
        for name, obj in self.blocks.objects.items():
            before = known.get(name)
            if before is not None and before[0] is obj:
                self._read[name] = before
                continue
            try:
                self._read[name] = (obj, read_block(obj))
            except ConfigError as problem:
                problems[IPAMBLOCKS.kind, name] = str(problem)
        self._report(IPAMBLOCKS.kind, problems)
        return tuple(block for _, block in self._read.values())

    def _ranges_of_peers(self) -> tuple[Network, ...]:
        if self._peer_ranges is None:
            peers = (peer for name, peer in self._nodes().items() if name != self._node)
            self._peer_ranges = tuple(network for peer in peers for network in peer.pod_networks)
        return self._peer_ranges

    def _note_answers(self, blocks: Sequence[Block], now: float) -> None:
        """Remembers an owner that answered without an address."""
        if self._asked is None:
            return
        block = next((block for block in blocks if block.name == self._asked[0]), None)
        if block is None or self._node not in block.requests:
            if block is None or not block.lent_to(self._node):
                self._unanswered[self._asked[0]] = now
            self._asked = None

    async def _carry_out(self, decision: BlockDecision) -> None:
        """Writes what an action says; the outcome is read before the next look."""
        action = decision.action
        assert action is not None
        addresses = self._lent_now(action, decision)
        name = self._unsettled = block_of(action)
        try:
            await write(self._client, self._node, action, addresses)
        except AlreadyExists:
            if isinstance(action, ClaimBlock) and name not in self.blocks.objects:
                self._refused[action.network] = self._client.clock.monotonic()
        except (Conflict, NotFound):
            pass  # Another node was faster; the next look has its write.
        except (ApiError, ApiUnreachable, ProtocolError) as failure:
            self._log.warning("cannot write a block", block=name, action=type(action).__name__, problem=failure)
            if isinstance(action, ClaimBlock) and isinstance(failure, ApiError):
                self._refused[action.network] = self._client.clock.monotonic()
            await self._client.clock.sleep(_RETRY_S)
        else:
            self._log.info("wrote a block", block=name, action=type(action).__name__)
            if isinstance(action, AskOwner):
                self._asked = (name, self._client.clock.monotonic())

    def _lent_now(self, action: BlockAction, decision: BlockDecision) -> tuple[Address, ...]:
        """Takes the addresses that an answer lends from this node's pods, on disk before the API knows of them.

        Those that an agent took before it was killed come first. No address is lent when the disk cannot be written.
        """
        if not isinstance(action, LendAddresses):
            return ()
        network = action.block.network
        reserved = [address for address in self._leases.away - decision.away if address in network][: action.count]
        addresses = (*reserved, *self._leases.spare(network, action.count - len(reserved)))
        try:
            self._leases.lend(decision.away | set(addresses))
        except CniError as failure:
            self._log.warning("cannot write the address ledger", problem=failure)
            return ()
        return addresses

    async def _settled(self) -> bool:
        """Whether the watch shows the block that was written last as the API has it."""
        name = self._unsettled
        if not name:
            return True
        try:
            current = await self._client.get(IPAMBLOCKS, name, decode_as=IpamBlock)
            version = current.metadata.resource_version
        except NotFound:
            version = ""
        except (ApiError, ApiUnreachable, ProtocolError):
            return False
        try:
            async with asyncio.timeout(_SEEN_S):
                while not self._shows(name, version):
                    await self._client.clock.sleep(_SEEN_POLL_S)
        except TimeoutError:
            return False
        self._unsettled = ""
        return True

    def _shows(self, name: str, version: str) -> bool:
        """Whether the watch shows a block in a version, or a later one; an empty version: no block."""
        known = self.blocks.versions.get(name, "")
        if not version or not known:
            return known == version
        return known == version or (known.isdecimal() and version.isdecimal() and int(known) > int(version))

    def _note_problem(self, situation: BlockSituation, decision: BlockDecision) -> None:
        """Sets :attr:`problem`, and logs a new one."""
        problem = ""
        if decision.action is None and not decision.routed:
            has_pool = any(pool.is_for(situation.labels) for pool in situation.pools)
            problem = (
                "the IPPools have no free block, and no node lends an address" if has_pool else "no IPPool is for it"
            )
            problem = f"node {self._node} has no addresses for pods: {problem}"
        if problem and problem != self.problem:
            self._log.warning("cannot claim a block", problem=problem)
        self.problem = problem

    def _report_stolen(self, node: Node, decision: BlockDecision) -> None:
        """Reports pods whose addresses are in a block of another node: they cannot be reached."""
        ranges = ", ".join(map(str, decision.stolen))
        text = f"pods of this node have addresses of {ranges}, which another node has claimed" if ranges else ""
        key = ("Node", self._node)
        if text and self._problems.get(key) != text:
            self._log.error("pods have addresses of another node", ranges=ranges)
            if self.events is not None:
                self.events.event(reference("v1", "Node", node.metadata), "Warning", STOLEN, text)
        self._problems[key] = text

    def _report(self, kind: str, problems: Mapping[tuple[str, str], str]) -> None:
        """Records an Event and a line of the log for each new reason why an object is refused."""
        for key, text in problems.items():
            if self._problems.get(key) == text:
                continue
            self._log.warning("refused an object", kind=key[0], name=key[1], problem=text)
            resource, objects = (IPPOOLS, self.pools) if kind == IPPOOLS.kind else (IPAMBLOCKS, self.blocks)
            obj = objects.objects.get(key[1])
            if self.events is not None and obj is not None:
                subject = reference(resource.api_version, kind, obj.metadata)
                self.events.event(subject, "Warning", REFUSED, text)
        gone = [key for key in self._problems if key[0] == kind and key not in problems]
        for key in gone:
            del self._problems[key]
        self._problems.update(problems)
