"""The CNI part of an agent: socket, addresses and kernel put together, and its background jobs.

ADD is answered when packets pass to and from the pod: devices and addresses forward packets a short time after they are
created, which may be long on a busy machine. After :data:`READY_S` ADD is answered anyway.

Where nodes claim blocks, ADD waits for an address while none is free, for :data:`ADDRESSES_S` at most. STATUS does not
fail then: the node gets addresses when a pod waits for them, and a node that is not ready gets no pods.

STATUS is answered when the node's pod CIDR is known, or after :data:`STATUS_S`, so that a runtime need not repeat the
request while the node starts.

``delete_detached`` deletes detached devices in a thread, :data:`DELETE_S` after the first DEL, so that a burst of DEL
is one deletion. ``forget_stale`` deletes stale connections to hostPorts of new pods in a thread, :data:`STALE_S` after
the first ADD: a listing of connections takes longer than the rest of ADD. ``sweep`` looks every :data:`SWEEP_S` for
pods that vanished without a DEL.

:mod:`podwire.cni.healing` restores what another program changed; :mod:`podwire.cni.hardware` follows the hardware
addresses of pods.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Protocol

import msgspec

from podwire.cni import delegation, metrics
from podwire.cni.attachments import Attachments
from podwire.cni.batches import Alone, RequestBatches
from podwire.cni.hardware import HardwareAddresses
from podwire.cni.healing import PodHealing
from podwire.cni.ipam import hostlocal
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.ipam.pool import exhausted
from podwire.cni.ledgerwatch import NODE, LedgerWatch
from podwire.cni.node import PodNetwork, is_beside
from podwire.cni.plumbing import KernelPlumber
from podwire.cni.protocol import CniRequest
from podwire.cni.repair import AttachmentRepair
from podwire.cni.server import CniServer
from podwire.cni.spec import IO_FAILURE
from podwire.cni.wiring import Wiring, WiringFacts, separated_networks
from podwire.errors import CniError, KernelError
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.state.share import Share

READY_S = 5.0
_READY_POLL_S = 0.002
STATUS_S = 1.0
ADDRESSES_S = 10.0
"""ADD waits so long for addresses, where the node can claim a block."""
_ADDRESSES_POLL_S = 0.02
DELETE_S = 0.2
STALE_S = 0.2
SWEEP_S = 60.0


class CniSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Paths and settings of the CNI part; ``netns`` None means the namespace of this process.

    ``host_local`` is the directory of the plugin ``host-local`` whose addresses are taken over. ``link`` is how new
    pods are connected: ``routed`` or ``bridge``.
    """

    socket: Path
    database: Path
    network: str = "podwire"
    cooldown_s: float = 30.0
    netns: Path | None = None
    host_local: Path | None = None
    link: str = "routed"


class AddressSource(Protocol):
    """Gets more addresses for the node."""

    waiting: int
    """The number of pods that wait for addresses."""

    def disturbed(self) -> None:
        """Requests addresses at once."""
        ...


class CniService:
    """The CNI part of one node's agent."""

    def __init__(self, settings: CniSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._log = Log("cni")
        self._ledger = Ledger(settings.database)
        self._node = WiringFacts()
        self._cut_off = True
        """Whether pods whose network the node does not have are cut off, as far as it is known."""
        self.served = asyncio.Event()
        """Set while the node has a pod CIDR."""
        self._unwired = asyncio.Event()
        self._got_ports = asyncio.Event()
        self._plumber = KernelPlumber(settings.netns)
        self.leases = Leases(self._ledger, clock.now, settings.cooldown_s)
        self.disk = LedgerWatch(self._ledger, self.leases, clock)
        """Whether the ledger can be written."""
        self.attachments = Attachments(self.leases, self._plumber)
        self.repair = AttachmentRepair(self.attachments, lambda: self._node, self._plumber.lost, self._plumber.sysctls)
        self.healing = PodHealing(self._plumber, self.repair, clock, self._log)
        self.hardware = HardwareAddresses(self.attachments, self._plumber.hardware, clock, self._log)
        self._pods = PodNetwork(self.attachments, lambda: self._node, self.problem)
        self.address_source: AddressSource | None = None
        """Where more addresses come from when none is free; None: the node's ranges are all."""
        self._batches = RequestBatches(self._pods, self.attachments, lambda: self._node)
        self._server = CniServer(
            settings.socket, self._handle, self._log, self._before, self._after, self._handle_together
        )

    def set_node(self, node: WiringFacts) -> bool:
        """Sets the facts of the node; running pods get a new MTU and leg. Returns whether the leg could be made.

        The facts are written to disk: an agent that starts while the API is away serves pods as its predecessor did.
        A disk that is full keeps nothing from having effect; the facts are written when there is room.
        """
        node = msgspec.structs.replace(node, link=self._settings.link)
        if node == self._node:
            return self._rewired()
        self._log.info("configured pods", mtu=node.mtu, cidrs=",".join(node.cidrs), networks=",".join(node.networks))
        self.disk.remember(node)
        return self._apply_node(node)

    def leave_networks(self, networks: Mapping[str, tuple[str, ...]]) -> str:
        """Cuts off running pods of all further networks but these, with the node's ranges by name.

        To be called before the separation of networks goes. Returns why it cannot; empty: it is done.
        """
        remaining = {name: cidrs for name, cidrs in self._node.networks.items() if networks.get(name) == cidrs}
        if remaining == self._node.networks and self._cut_off:
            return ""
        self._cut_off = False
        try:
            self.set_node(msgspec.structs.replace(self._node, networks=remaining))
            self.repair.heal(sysctls=False)
            missing = self.repair.lacks_rules()
        except KernelError as failure:
            return f"cannot cut off pods whose network is gone: {failure}"
        self._cut_off = not missing
        return f"cannot cut off pods whose network is gone: no {missing[0]}" if missing else ""

    def _apply_node(self, node: WiringFacts) -> bool:
        self._node = node
        self._plumber.prepare({6 if ":" in cidr else 4 for cidr in node.cidrs})
        self.repair.hold_bridge()
        networks = {name: tuple(map(ip_network, cidrs)) for name, cidrs in node.networks.items()}
        self.leases.serve(map(ip_network, node.cidrs), whole=node.whole, further=networks)
        rewired = self._rewired()
        self.healing.disturbed.set()
        if node.cidrs:
            self.served.set()
        else:
            self.served.clear()
        return rewired

    def _rewired(self) -> bool:
        """Gives running pods what the node's facts say; whether the uplink of their legs exists.

        A failure in the namespace of one pod concerns that pod alone.
        """
        try:
            failures = self.repair.node_changed()
        except KernelError as failure:
            self._log.warning("cannot change the network of running pods", problem=failure)
            return False
        if failures:
            self._log.warning("cannot change the network of some running pods", problem="; ".join(failures))
        return True

    def recover(self, *, legs: bool = True) -> None:
        """Takes over the pods that an earlier agent wired; to be called before ``run``.

        Without ``legs``, pods lose their second interfaces first. New pods of further networks have to wait for
        routing where the networks are not separate yet.
        """
        if self._settings.host_local is not None:
            _import_addresses(self.leases, self._settings.host_local, self._log)
        if remembered := self._ledger.fact(NODE):
            node = msgspec.json.decode(remembered, type=WiringFacts)
            node = msgspec.structs.replace(node, link=self._settings.link)
            node = separated_networks(node, self._plumber.read())
            self._apply_node(node)
            if not legs:
                self.set_node(msgspec.structs.replace(node, leg=None))
        self.repair.recover(self._settings.network)
        for attachment in self.leases.held.values():
            self.attachments.got_ports(attachment)
            self._got_ports.set()
        self._unwired.set()
        self.healing.disturbed.set()

    async def run(self) -> None:
        """Answers requests until cancelled."""
        await self._server.run()

    async def delete_detached(self) -> None:
        """Deletes the devices of deleted pods, until cancelled."""
        while True:
            await self._unwired.wait()
            await self._clock.sleep(DELETE_S)
            self._unwired.clear()
            addresses = self.attachments.take_released()
            try:
                await asyncio.to_thread(self._plumber.delete_detached, addresses)
            except KernelError as failure:
                self._log.warning("cannot delete the devices of deleted pods", problem=failure)

    async def forget_stale(self) -> None:
        """Deletes stale connections to hostPorts of new pods, until cancelled."""
        while True:
            await self._got_ports.wait()
            await self._clock.sleep(STALE_S)
            self._got_ports.clear()
            fresh = self.attachments.take_new_ports()
            try:
                await asyncio.to_thread(self._plumber.ports.forget_stale, fresh)
            except KernelError as failure:
                self._log.warning("cannot delete stale connections to hostPorts", problem=failure)

    async def sweep(self) -> None:
        """Releases the addresses and devices of pods that vanished without a DEL, until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_S)
            try:
                self.repair.sweep()
                self._pods.lending.sweep(_is_gone)
            except CniError as failure:
                self._log.warning(
                    "cannot release the addresses of pods that no longer exist; trying again", problem=failure
                )
                self.disk.failed.set()
            self._unwired.set()
            self.healing.check_sysctls = True
            self.healing.disturbed.set()

    def close(self) -> None:
        """Closes sockets and ledger; everything in the kernel stays."""
        self._plumber.close()
        self.leases.close()

    def problem(self) -> str:
        """Says why pods cannot be added now; empty when they can."""
        if not self.leases.pools:
            return "no pod CIDR yet"
        full = exhausted(self.leases.pools, self.leases.closed)
        return f"no free address in {', '.join(full)}" if full and self.address_source is None else ""

    def shares(self) -> Iterator[Share]:
        """The desired kernel state: the node's side of all pods with their hostPorts, then each pod's own side."""
        return self.attachments.shares(self._node)

    def samples(self) -> list[Sample]:
        """The metrics."""
        return metrics.samples(self._pods.requests, self.leases)

    def _before(self, request: CniRequest) -> Awaitable[None] | None:
        if request.command == "STATUS" and not self.served.is_set():
            return _wait_for(self.served, STATUS_S)
        source, own = self.address_source, not (delegation.foreign(request.conf) or is_beside(request))
        if source is not None and own and request.command == "ADD" and _lacks_addresses(self.leases):
            return self._wait_for_addresses(source, request)
        return self._pods.before(request)

    async def _wait_for_addresses(self, source: AddressSource, request: CniRequest) -> None:
        source.waiting += 1
        source.disturbed()
        try:
            async with asyncio.timeout(ADDRESSES_S):
                while _lacks_addresses(self.leases):
                    await self._clock.sleep(_ADDRESSES_POLL_S)
        except TimeoutError:
            pass  # The request fails with the reason, and the runtime repeats it.
        finally:
            source.waiting -= 1
        if (ready := self._pods.before(request)) is not None:
            await ready

    def _after(self, request: CniRequest, netns: str) -> Awaitable[None] | None:
        wiring = self._pods.take_not_ready(request)
        return None if wiring is None else self._wait_until_ready(wiring, netns)

    async def _wait_until_ready(self, wiring: Wiring, netns: str) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not self._plumber.is_ready(wiring, netns):
                    await self._clock.sleep(_READY_POLL_S)
        except TimeoutError:
            links = ", ".join(link.name for link in wiring.host.links)
            self._log.warning("added a pod whose interfaces do not forward yet", links=links)
        except KernelError as failure:
            self._log.warning("a pod was deleted while it was being added", problem=failure)

    def _handle(self, request: CniRequest, netns: str) -> bytes:
        try:
            return self._pods.handle(request, netns)
        except CniError as failure:
            if failure.code == IO_FAILURE:
                self.disk.failed.set()
            raise
        finally:
            if request.command in ("DEL", "GC"):
                self._unwired.set()
            elif request.conf.runtime_config.port_mappings:
                self._got_ports.set()

    def _handle_together(self, requests: Sequence[tuple[CniRequest, str]], alone: Alone) -> Iterator[tuple[int, bytes]]:
        try:
            yield from self._batches.handle(requests, alone)
        finally:
            if any(request.command == "DEL" for request, _ in requests):
                self._unwired.set()
            if any(request.conf.runtime_config.port_mappings for request, _ in requests):
                self._got_ports.set()


async def _wait_for(event: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass


def _import_addresses(leases: Leases, directory: Path, log: Log) -> None:
    """Takes over the addresses of the plugin ``host-local``."""
    try:
        count = leases.import_held(hostlocal.read(directory), hostlocal.last_assigned(directory))
    except OSError as failure:
        log.warning("cannot take over the addresses of host-local", problem=failure)
    else:
        if count:
            log.info("took over the addresses of host-local", pods=count, directory=str(directory))


def _lacks_addresses(leases: Leases) -> bool:
    """Whether no address is free."""
    return not leases.pools or bool(exhausted(leases.pools, leases.closed))


def _is_gone(netns: str) -> bool:
    """Whether a namespace was deleted; in a container that does not see the host's folder none is."""
    return not Path(netns).exists() and Path(netns).parent.exists()
