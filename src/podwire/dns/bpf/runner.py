"""Answers DNS queries of the pods of one node in the kernel: the program on the pods' devices, and who may use it.

How it works: the program is at the ingress of the device of each pod to which no egress policy applies; a packet that
it answers does not reach the policies. The map of clients has the device and the addresses of these pods, and a query
of any other device or source goes up the stack. Guarantees: 1. a pod that a policy begins to select is taken out of
the map before the policy is in force, and a pod that no policy selects any more is added after that
(:meth:`DnsAnswers.narrow`, :meth:`DnsAnswers.widen`); when the kernel refuses to take a pod out, no query is
answered; 2. the program is attached when a device appears, and again when another program has removed it, within
:data:`CHECK_S`; 3. the lease of the answers is renewed every :data:`RENEW_S`, also while the API cannot be reached:
then the kernel answers from the last known state, as a DNS server does; 4. missing features of the kernel are reported,
and tried again every :data:`RETRY_S`; the servers answer meanwhile; 5. a restart finds program, maps and attachments,
and changes what differs; when a map must be made anew, no query is answered until all maps are filled.

Cost: 20 us for each pod and check; 40 us for a change of a pod.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

from podwire.dns.bpf.entries import EntryPlan, client_key
from podwire.dns.bpf.table import DnsMaps, DnsTable, replace_keys
from podwire.dns.index import ServiceKey
from podwire.dns.zone import Zone, ZoneOptions
from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import bpf_objects
from podwire.kernel.bpf_attach import index_of
from podwire.kernel.bpf_state import BpfPins, check_file_system
from podwire.kernel.bpf_syscall import BpfMapTable
from podwire.kernel.monitor import Event, Monitor
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first
from podwire.state.bpf import BpfAttachment, BpfFolder

PROGRAM = "dns_answers"
RENEW_S = 3.0
CHECK_S = 30.0
RETRY_S = 30.0
_SETTLE_S = 0.02

FreePods = Mapping[str, tuple[str, ...]]
"""The addresses of the pods to which no egress policy applies, by device."""


def client_keys(free: FreePods) -> set[bytes]:
    """The keys of the map of clients for pods whose devices exist."""
    return {
        client_key(index, ip_address(address).packed)
        for device, addresses in free.items()
        if (index := index_of(device))
        for address in addresses
    }


class DnsAnswers:
    """The answers of one node; ``folder`` is that of the pins, ``report`` gets the problem, or empty text."""

    def __init__(
        self, zone: Zone, options: ZoneOptions, service: ServiceKey, folder: str, clock: Clock, udp_size: int = 1232
    ) -> None:
        self._plan = EntryPlan(options)
        self._clock = clock
        self._folder = folder
        self._log = Log("dns.kernel")
        self._wake = asyncio.Event()
        self._free: FreePods | None = None
        """None until policies were in force once: what an earlier process attached stays until then."""
        self._pins: BpfPins | None = None
        self._maps: DnsMaps | None = None
        self._checked_s = -CHECK_S
        self.table = DnsTable(self._plan, zone.index, service, udp_size)
        self.switched = asyncio.Event()
        """Set when the kernel begins or ends to answer."""
        self.report: Callable[[str], None] = lambda _problem: None
        self.desired: BpfFolder | None = None
        """What the kernel should hold; None while that is not known."""

    # -- what policies say

    def narrow(self, free: FreePods) -> None:
        """Stops answering pods that are not among ``free``; to be called before their policies are in force."""
        if self._free is not None:
            self._free = {device: own for device, own in self._free.items() if free.get(device) == own}
        try:
            if self._maps is not None:
                self._close_clients(self._maps.clients, free)
            else:
                # The map of an earlier process may still be in use.
                self._close_left_clients(free)
        except KernelError as failure:
            self._log.error("cannot take pods out of the kernel's DNS answers", failure=failure)
            self.table.switch_off(str(failure))

    def _close_left_clients(self, free: FreePods) -> None:
        try:
            clients = BpfPins(self._folder).open_map("dns_clients")
        except KernelNotFound:
            return
        try:
            self._close_clients(clients, free)
        finally:
            clients.close()

    def _close_clients(self, clients: BpfMapTable, free: FreePods) -> None:
        allowed = client_keys(free)
        for key in [key for key in clients if key not in allowed]:
            clients.delete(key)

    def widen(self, free: FreePods) -> None:
        """Answers these pods and no others; to be called when the policies are in force."""
        if free != self._free:
            self._free = dict(free)
            self._wake.set()

    # -- the kernel

    def changed(self) -> None:
        """Writes changes of the zone; to be called after each."""
        before = self.table.answering
        self.table.follow()
        if before != self.table.answering:
            self.switched.set()

    async def run(self) -> None:
        """Keeps the kernel's answers current until cancelled; the answers stay until their lease ends."""
        with Monitor() as monitor:
            monitor.attach(self._devices_changed)
            while True:
                delay_s, before = RENEW_S, self.table.answering
                try:
                    self._keep()
                except KernelError as failure:
                    self.report(f"DNS queries are answered by the servers alone, not in the kernel: {failure.detail}")
                    delay_s = RETRY_S
                else:
                    self.report(f"DNS answers in the kernel: {self.table.problem}" if self.table.problem else "")
                if before != self.table.answering:
                    self.switched.set()
                await wait_first(self._wake, self._clock.sleep(delay_s))
                if self._wake.is_set():
                    await self._clock.sleep(_SETTLE_S)

    def _devices_changed(self, events: Sequence[Event]) -> None:
        if any(event.kind in ("link", "lost") for event in events):
            self._wake.set()

    def _keep(self) -> None:
        """Raises: KernelError when the kernel lacks what the program needs, or refuses a change."""
        free, now_s = self._free, self._clock.monotonic()
        if free is None:
            self._wake.clear()
            return
        if self._maps is None or self._wake.is_set() or now_s - self._checked_s >= CHECK_S:
            self._wake.clear()
            self._check(free)
            self._checked_s = now_s
        self.table.renew()

    def _check(self, free: FreePods) -> None:
        if self._pins is None:
            check_file_system()
            self._pins = BpfPins(self._folder)
        pins = self._pins
        contents = bpf_objects.describe(PROGRAM, self._folder)
        devices = sorted(device for device in free if index_of(device))
        attachments = tuple(BpfAttachment(device, "ingress", PROGRAM) for device in devices)
        self.desired = BpfFolder(self._folder, contents.programs, contents.maps, attachments)
        before = pins.read()
        if before.maps and before.maps != self.desired.maps:
            self._forget_generation(pins)
        changes = pins.apply(self.desired)
        if self._maps is None or before.maps != self.desired.maps or before.programs != self.desired.programs:
            self._open_maps(pins)
        if changes:
            self._log.info("attached the DNS answers", devices=len(devices), changes=len(changes))
        assert self._maps is not None
        replace_keys(self._maps.clients, client_keys(free))

    @staticmethod
    def _forget_generation(pins: BpfPins) -> None:
        """Ends the answers of an earlier process: a map that is made anew is empty, and says that no name exists."""
        try:
            generation = pins.open_map("dns_generation")
        except KernelNotFound:
            return
        try:
            generation.write(bytes(4), bytes(8))
        finally:
            generation.close()

    def _open_maps(self, pins: BpfPins) -> None:
        if self._maps is not None:
            self._maps.close()
        self._maps = DnsMaps(*(pins.open_map(f"dns_{field}") for field in DnsMaps._fields))
        self.table.use(self._maps)
