"""The loop that takes blocks back from nodes that are gone.

Guarantees: 1. a node counts as gone when two looks, at least :data:`GRACE_S` apart and all looks between them, saw no
Node of its name, and the API, asked for this Node again, has none; 2. a block whose addresses other nodes use is not
deleted: it loses its owner, and the next node that needs a block takes it over; 3. every write names the version that
was looked at.
"""

from podwire.cluster.blocks import Block, read_block
from podwire.controllers.ipamblocks.plan import DeleteBlock, StripBlock, plan, users
from podwire.errors import ApiError, ApiUnreachable, ConfigError, NotFound, ProtocolError
from podwire.kube.controller import Environment
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import IPAMBLOCKS, NODES
from podwire.model.ipam import IpamBlock
from podwire.runtime.supervise import Supervisor

GRACE_S = 60.0
_LOOK_S = 5.0


class IpamBlocksController:
    """The blocks of a cluster."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._log = environment.log
        self._nodes = environment.of(NODES)
        self._blocks: Informer[IpamBlock] = Informer(self._client, IPAMBLOCKS)
        self._missing: dict[str, float] = {}
        """When each node that has blocks was first missing."""

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        supervisor.start("blocks of pools", lambda: follow_when_served(self._client, self._blocks))
        supervisor.start("ipamblocks", self._run)

    async def _run(self) -> None:
        await self._blocks.synced.wait()
        while True:
            try:
                await self.look()
            except (ApiError, ApiUnreachable, ProtocolError) as failure:
                self._log.debug("cannot take blocks back", problem=failure)
            await self._clock.sleep(_LOOK_S)

    async def look(self) -> None:
        """One look at blocks and nodes.

        Raises: ApiError, ApiUnreachable; the next look goes on.
        """
        blocks, now = list(self._read()), self._clock.monotonic()
        missing = {node for node in users(blocks) if node not in self._nodes.objects}
        self._missing = {node: self._missing.get(node, now) for node in missing}
        gone = [node for node, since in self._missing.items() if now - since >= GRACE_S and await self._is_gone(node)]
        for change in plan(blocks, gone):
            try:
                await self._write(change)
            except NotFound:
                continue  # Its node has just released it.

    def _read(self) -> list[Block]:
        blocks = []
        for obj in self._blocks.objects.values():
            try:
                blocks.append(read_block(obj))
            except ConfigError:
                continue  # The agents report it.
        return blocks

    async def _is_gone(self, node: str) -> bool:
        try:
            await self._client.get(NODES, node)
        except NotFound:
            return True
        return False

    async def _write(self, change: DeleteBlock | StripBlock) -> None:
        block = change.block
        if isinstance(change, DeleteBlock):
            await self._client.delete_unchanged(IPAMBLOCKS, block.meta)
            self._log.info(
                "deleted the block of a node that does not exist any more", block=block.name, node=block.node
            )
            return
        spec: dict[str, object] = {
            "lent": {str(address): None for address in change.addresses},
            "requests": dict.fromkeys(change.requests),
        }
        if change.owner:
            spec["node"] = ""
        body = {"metadata": {"uid": block.meta.uid, "resourceVersion": block.meta.resource_version}, "spec": spec}
        await self._client.patch(IPAMBLOCKS, block.name, body)
        self._log.info(
            "removed the owner of a block: the node does not exist any more", block=block.name, owner=block.node
        )
