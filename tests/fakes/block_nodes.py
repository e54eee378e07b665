"""Nodes that claim blocks at a real API server: keeper, leases and ledger are real, pods are rows of the ledger."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from podwire.cluster.announcer import Announcer
from podwire.cni.ipam.blocks.keeper import BlockKeeper, BlockSettings
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.protocol import AttachmentKey
from podwire.errors import CniError
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import NODES, Resource
from podwire.model.node import Node


class Killed(BaseException):
    """The agent is killed here."""


class MortalClient(Client):
    """With ``mortal``, kills its agent at every write to the API: before the first attempt, and after the second."""

    mortal = False
    writes = 0

    async def _mortal(self, write: Awaitable[Any]) -> Any:
        self.writes += 1
        if self.mortal and self.writes % 2:
            asyncio.ensure_future(write).cancel()
            raise Killed
        answer = await write
        if self.mortal:
            raise Killed
        return answer

    async def create(self, resource: Resource[Any], *args: Any, **fields: Any) -> Any:
        write = super().create(resource, *args, **fields)
        return await (write if resource.kind == "Event" else self._mortal(write))

    async def patch(self, resource: Resource[Any], *args: Any, **fields: Any) -> Any:
        write = super().patch(resource, *args, **fields)
        return await (write if resource.kind == "Event" else self._mortal(write))

    async def delete_unchanged(self, *args: Any, **fields: Any) -> Any:
        return await self._mortal(super().delete_unchanged(*args, **fields))


class BlockNode:
    """One node, whose agent can be killed and started again over the same ledger."""

    def __init__(self, client: Client, name: str, folder: Path, **settings: Any) -> None:
        self.name = name
        self.client = MortalClient(client.config, client.clock)
        self.kills = 0
        self._file = folder / f"{name}.db"
        self._settings = BlockSettings(**settings)
        self._serial = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self.start()

    def start(self) -> None:
        """Starts the agent."""
        self._ledger = Ledger(self._file)
        self.leases = Leases(self._ledger, self.client.clock.now, cooldown_s=2)
        self.nodes: Informer[Node] = Informer(self.client, NODES)
        announcer = Announcer(self.client, self.name, lambda: self.nodes.objects)
        self.keeper = BlockKeeper(
            self.client, self.name, lambda: self.nodes.objects, self.leases, announcer.announce, self._settings
        )
        self.keeper.events = EventRecorder(self.client, "podwire-agent", host=self.name)
        self.nodes.subscribe(self._changed)
        runs = (self.nodes.run, self.keeper.follow_pools, self.keeper.follow_blocks, self.keeper.events.run, self._keep)
        self._tasks = [asyncio.ensure_future(run()) for run in runs]

    async def stop(self) -> None:
        """Ends the agent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ledger.close()

    async def _keep(self) -> None:
        await self.nodes.synced.wait()
        try:
            await self.keeper.run()
        except Killed:
            self.kills += 1
            self._revival = asyncio.ensure_future(self._revive())

    async def _revive(self) -> None:
        await self.stop()
        self.start()

    def _changed(self, key: str, _old: Node | None, new: Node | None) -> None:
        if key == self.name and new is not None:
            self.leases.serve(new.pod_networks)
        self.keeper.nodes_changed()

    @property
    def announced(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The ranges on the node's Node."""
        node = self.nodes.objects.get(self.name)
        return node.pod_networks if node is not None else ()

    def try_add(self) -> Attachment | None:
        """Adds a pod; None when no address is free."""
        try:
            addresses = self.leases.choose()
        except CniError:
            return None
        container = f"{self.name}-{next(self._serial)}"
        key = AttachmentKey("podwire", container, "eth0")
        held = Attachment(key=key, addresses=tuple(map(str, addresses)), host_link=container, mac="", netns="")
        self.leases.hold(held)
        return held

    async def add(self, count: int = 1) -> list[Attachment]:
        """Adds pods, each when an address is free for it."""
        added: list[Attachment] = []
        self.keeper.waiting += 1
        while len(added) < count:
            pod = self.try_add()
            if pod is not None:
                added.append(pod)
                continue
            self.keeper.waiting = 1
            self.keeper.disturbed()
            await self.client.clock.sleep(0.05)
        self.keeper.waiting = 0
        self.keeper.disturbed()
        return added

    def delete(self, keys: list[AttachmentKey]) -> None:
        """Deletes pods."""
        self.leases.release([self.leases.held[key] for key in keys])

    def addresses(self) -> set[str]:
        """The addresses of the pods."""
        return {ip for attachment in self.leases.held.values() for ip in attachment.addresses}


async def until(check: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Returns when a condition holds. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
