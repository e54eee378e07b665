"""The CNI part of an agent: socket, addresses and kernel put together, and its two background jobs.

``bury`` deletes unwired devices in a thread, :data:`BURY_S` after the first DEL, so that a burst of them is one
deletion. ``sweep`` looks every :data:`SWEEP_S` for pods that vanished without a DEL.
"""

import asyncio
from ipaddress import ip_network
from pathlib import Path

import msgspec

from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.node import PodNetwork
from podwire.cni.plumbing import KernelPlumber
from podwire.cni.protocol import Request
from podwire.cni.server import Server
from podwire.cni.wiring import Node
from podwire.errors import KernelError
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.runtime.clock import Clock

BURY_S = 0.05
SWEEP_S = 60.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the part has its things; ``netns`` None means the namespace of this process."""

    socket: Path
    database: Path
    network: str = "podwire"
    cooldown_s: float = 30.0
    netns: Path | None = None


class CniService:
    """The CNI part of one node's agent."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._log = Log("cni")
        self._ledger = Ledger(settings.database)
        self._node = Node()
        self._unwired = asyncio.Event()
        self._plumber = KernelPlumber(settings.netns)
        self.leases = Leases(self._ledger, clock.now, settings.cooldown_s)
        self.pods = PodNetwork(self.leases, self._plumber, lambda: self._node)
        self._server = Server(settings.socket, self._handle, self._log)

    def set_node(self, node: Node) -> None:
        """Sets what is known of the node; pods that run follow a new MTU.

        It is remembered: an agent that starts while the API is away serves pods as its predecessor did.
        """
        if node == self._node:
            return
        self._log.info("node", mtu=node.mtu, cidrs=",".join(node.cidrs))
        self._ledger.remember("node", msgspec.json.encode(node))
        self._take(node)

    def _take(self, node: Node) -> None:
        self._node = node
        self._plumber.prepare({6 if ":" in cidr else 4 for cidr in node.cidrs})
        self.leases.serve(ip_network(cidr) for cidr in node.cidrs)
        self.pods.node_changed()

    def recover(self) -> None:
        """Puts right what an earlier agent left; to be called before ``run``."""
        if remembered := self._ledger.fact("node"):
            self._take(msgspec.json.decode(remembered, type=Node))
        self.pods.recover(self._settings.network)
        self._unwired.set()

    async def run(self) -> None:
        """Answers requests until cancelled."""
        await self._server.run()

    async def bury(self) -> None:
        """Deletes unwired devices, until cancelled."""
        while True:
            await self._unwired.wait()
            await self._clock.sleep(BURY_S)
            self._unwired.clear()
            gone = self.pods.forgotten()
            try:
                await asyncio.to_thread(self._plumber.bury, gone)
            except KernelError as failure:
                self._log.warning("what unwired pods left is still there", problem=failure)

    async def sweep(self) -> None:
        """Gives back what vanished pods held, until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_S)
            self.pods.sweep()
            self._unwired.set()

    def close(self) -> None:
        """Closes sockets and ledger; everything in the kernel stays."""
        self._plumber.close()
        self.leases.close()

    def problem(self) -> str:
        """Why pods cannot be added now, or empty."""
        if not self.leases.pools:
            return "no pod CIDR yet"
        gone = self.leases.exhausted()
        return f"no free address in {', '.join(gone)}" if gone else ""

    def samples(self) -> list[Sample]:
        """The metrics."""
        return self.pods.samples()

    def _handle(self, request: Request, netns: str) -> bytes:
        try:
            return self.pods.handle(request, netns)
        finally:
            if request.command in ("DEL", "GC"):
                self._unwired.set()
