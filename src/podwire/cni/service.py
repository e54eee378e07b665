"""The CNI part of an agent: socket, addresses and kernel put together, and its background jobs.

ADD is answered when packets pass to and from the pod: its devices and addresses are at work a moment after they are
there, which is a long moment on a busy machine. After :data:`READY_S` the answer goes all the same.

STATUS is answered when the node's pod CIDR is known, or after :data:`STATUS_S`: a runtime that asks while the node
starts need not ask again and again.

``delete_detached`` deletes detached devices in a thread, :data:`DELETE_S` after the first DEL, so that a burst of DEL
is one deletion. ``sweep`` looks every :data:`SWEEP_S` for pods that vanished without a DEL. ``heal`` keeps pods'
routes, neighbours, devices and sysctls on the node's side as they should be. Its guarantees: 1. a route or neighbour of
a pod that goes, a device or sysctl that changes and an address of the node that comes or goes are followed by a look
after :data:`HEAL_S`; 2. the next look is :data:`HEAL_REST_S` later, so pods that come and go by the dozen cost one a
second; 3. what the kernel refuses (a route from an address that the node has lost) is tried again with a backoff from
0.2 s to 10 s, and at once when an address comes; 4. what the kernel does not tell of (some sysctls), and the hostPort
table, is looked at with ``sweep``.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from ipaddress import ip_network
from pathlib import Path

import msgspec

from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.node import PodNetwork
from podwire.cni.plumbing import KernelPlumber
from podwire.cni.protocol import Request
from podwire.cni.server import Server
from podwire.cni.wiring import OWNER, Node, Wiring
from podwire.errors import KernelError
from podwire.kernel.monitor import Event
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock

READY_S = 5.0
_LOOK_S = 0.002
STATUS_S = 1.0
DELETE_S = 0.05
SWEEP_S = 60.0
HEAL_S = 0.05
HEAL_REST_S = 1.0


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
        self._served = asyncio.Event()
        self._unwired = asyncio.Event()
        self._disturbed = asyncio.Event()
        self._thorough = True
        self._plumber = KernelPlumber(settings.netns)
        self.leases = Leases(self._ledger, clock.now, settings.cooldown_s)
        self.pods = PodNetwork(self.leases, self._plumber, lambda: self._node)
        self._server = Server(settings.socket, self._handle, self._log, self._before, self._after)

    def set_node(self, node: Node) -> None:
        """Sets what is known of the node; pods that run follow a new MTU.

        It is remembered: an agent that starts while the API is away serves pods as its predecessor did.
        """
        if node == self._node:
            return
        self._log.info("configured pods", mtu=node.mtu, cidrs=",".join(node.cidrs))
        self._ledger.remember("node", msgspec.json.encode(node))
        self._take(node)

    def _take(self, node: Node) -> None:
        self._node = node
        self._plumber.prepare({6 if ":" in cidr else 4 for cidr in node.cidrs})
        self.leases.serve(ip_network(cidr) for cidr in node.cidrs)
        self.pods.node_changed()
        self._disturbed.set()
        if node.cidrs:
            self._served.set()
        else:
            self._served.clear()

    def recover(self) -> None:
        """Takes over the pods of an earlier agent; to be called before ``run``."""
        if remembered := self._ledger.fact("node"):
            self._take(msgspec.json.decode(remembered, type=Node))
        self.pods.recover(self._settings.network)
        self._unwired.set()
        self._disturbed.set()

    async def run(self) -> None:
        """Answers requests until cancelled."""
        await self._server.run()

    async def delete_detached(self) -> None:
        """Deletes the devices of deleted pods, until cancelled."""
        while True:
            await self._unwired.wait()
            await self._clock.sleep(DELETE_S)
            self._unwired.clear()
            gone = self.pods.forgotten()
            try:
                await asyncio.to_thread(self._plumber.delete_detached, gone)
            except KernelError as failure:
                self._log.warning("cannot delete the devices of deleted pods", problem=failure)

    async def sweep(self) -> None:
        """Releases the addresses and devices of pods that vanished without a DEL, until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_S)
            self.pods.sweep()
            self._unwired.set()
            self._thorough = True
            self._disturbed.set()

    async def heal(self) -> None:
        """Restores routes, neighbours, devices and sysctls of pods that somebody changed, until cancelled."""
        backoff = Backoff(0.2, 10.0)
        told = ""
        with self._plumber.watch() as monitor:
            monitor.attach(self._changed)
            while True:
                await self._disturbed.wait()
                await self._clock.sleep(HEAL_S)
                self._disturbed.clear()
                thorough, self._thorough = self._thorough, False
                failed = self.pods.heal(sysctls=thorough)
                problem = f"{failed[0]}, and {len(failed) - 1} more" if failed else ""
                if problem and problem != told:
                    self._log.warning("cannot restore the network of all pods; trying again", problem=problem)
                told = problem
                if not problem:
                    backoff.reset()
                    await self._clock.sleep(HEAL_REST_S)
                    continue
                self._thorough = True
                if not await self._disturbed_within(backoff.next_delay_s()):
                    self._disturbed.set()

    async def _disturbed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._disturbed.wait()
        except TimeoutError:
            return False

    def _changed(self, events: Sequence[Event]) -> None:
        if any(_concerns_pods(event) for event in events):
            self._thorough = self._thorough or any(event.kind in ("sysctl", "lost") for event in events)
            self._disturbed.set()

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

    def _before(self, request: Request) -> Awaitable[None] | None:
        if request.command == "STATUS" and not self._served.is_set():
            return self._wait_for_cidrs()
        return self.pods.before(request)

    def _after(self, request: Request, netns: str) -> Awaitable[None] | None:
        late = self.pods.late(request)
        return None if late is None else self._wait_until_ready(late, netns)

    async def _wait_until_ready(self, late: Wiring, netns: str) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not self._plumber.is_ready(late, netns):
                    await self._clock.sleep(_LOOK_S)
        except TimeoutError:
            links = ", ".join(link.name for link in late.host.links)
            self._log.warning("added a pod whose interfaces do not forward yet", links=links)
        except KernelError as failure:
            self._log.warning("a pod was deleted while it was being added", problem=failure)

    async def _wait_for_cidrs(self) -> None:
        try:
            async with asyncio.timeout(STATUS_S):
                await self._served.wait()
        except TimeoutError:
            pass

    def _handle(self, request: Request, netns: str) -> bytes:
        try:
            return self.pods.handle(request, netns)
        finally:
            if request.command in ("DEL", "GC"):
                self._unwired.set()


def _concerns_pods(event: Event) -> bool:
    """Whether what happened may have taken something from pods.

    Routes that go with their device or with their source address are not announced (net/ipv4/fib_trie.c,
    ``fib_table_flush``): the device or the address is.
    """
    if event.kind in ("route", "neighbour"):
        return event.removed and event.proto == OWNER.route_protocol
    return True
