"""Adds and removes the attachments of one node: in the ledger, in the kernel and in the policy gate."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from podwire.cni import bridgeguard, ports, requested, sourceguard, spec, wiring
from podwire.cni.chain.bandwidth import PodLimiter
from podwire.cni.chain.firewall import NodeFilter, ZoneSources
from podwire.cni.chain.tuning import PodDevices
from podwire.cni.gate import OpenGate, PolicyGate
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ipam.pool import Address
from podwire.cni.loopback import LoopbackDevices
from podwire.cni.pinned import chosen_network
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.cni.wiring import Wiring, WiringFacts
from podwire.errors import CniError, Unsupported
from podwire.observe.log import Log
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table
from podwire.state.nft_diff import Transaction
from podwire.state.share import Share


class TableHolder(Protocol):
    """One nftables table in the kernel."""

    @property
    def supported(self) -> bool:
        """Whether the kernel can have the table, as far as it is known."""
        ...

    def hold(self, table: Table | None, change: Transaction | None = None) -> None:
        """Makes the kernel hold the table; None: no table of this name.

        ``change`` is the difference from the table of the last call; None: it is computed.

        Raises: KernelError.
        """
        ...

    def drifted(self) -> bool:
        """Whether the table differs from the one that is held.

        Raises: KernelError.
        """
        ...


class SourceGuards(Protocol):
    """The tables that keep pods to their own addresses."""

    @property
    def bridge(self) -> TableHolder:
        """That of pods on the bridge."""
        ...

    @property
    def devices(self) -> TableHolder:
        """That of pods with devices of their own, for IPv6."""
        ...


class HostPortHolder(Protocol):
    """The hostPorts of pods in the kernel."""

    @property
    def table(self) -> TableHolder:
        """The table with the hostPorts."""
        ...

    def read(self) -> Mapping[str, tuple[spec.PortMapping, ...]]:
        """The hostPorts that the kernel holds, by the address of the pod."""
        ...

    def forget_stale(self, attachments: Collection[Attachment]) -> None:
        """Deletes tracked connections that keep packets to the pods' hostPorts from them."""
        ...


class PodBridge(Protocol):
    """The bridge of pods in the kernel."""

    def hold(self, planned: NetworkState) -> None:
        """Makes the node have the bridge.

        Raises: KernelError, also when another program has a device of this name.
        """
        ...

    def close_loopback(self) -> None:
        """Keeps packets of the bridge from the node's loopback network; without effect when there is no bridge.

        Raises: KernelError.
        """
        ...

    def has_index(self, index: int) -> bool:
        """Whether the bridge has an interface index."""
        ...


class Plumber(Protocol):
    """The kernel operations that CNI needs; all calls are short."""

    @property
    def bridge(self) -> PodBridge:
        """The bridge of pods."""
        ...

    @property
    def guards(self) -> SourceGuards:
        """The tables that keep pods to their own addresses."""
        ...

    @property
    def ports(self) -> HostPortHolder:
        """The hostPorts of pods."""
        ...

    @property
    def loopback(self) -> LoopbackDevices:
        """The devices ``lo`` of pods."""
        ...

    @property
    def tuning(self) -> PodDevices:
        """The devices and sysctls of pods."""
        ...

    @property
    def shaping(self) -> PodLimiter:
        """The bandwidth limits of pods."""
        ...

    @property
    def filter(self) -> NodeFilter:
        """The table ``filter`` of iptables."""
        ...

    @property
    def zones(self) -> ZoneSources:
        """The zones of firewalld."""
        ...

    def prepare(self, families: Collection[int]) -> None:
        """Turns on what the node needs for pods of these IP families."""
        ...

    def wire(self, planned: Wiring, netns: str) -> bool:
        """Creates a pod's devices; returns whether packets pass already.

        Raises: KernelExists when the pod has the interface or the node has the device name; KernelError. Nothing is
        left behind.
        """
        ...

    def unwire(self, attachments: Iterable[Attachment]) -> None:
        """Deletes pods' routes and neighbours at once and their devices soon; missing ones are ignored."""
        ...

    def rewire(self, attachments: Iterable[Attachment], node: WiringFacts) -> Sequence[str]:
        """Gives running pods another MTU and leg; returns the failures of single pods as text.

        Raises: KernelNotFound when the uplink of the leg does not exist.
        """
        ...

    def missing(self, planned: Wiring, netns: str) -> list[str]:
        """The lines of a wiring that the kernel does not hold."""
        ...

    def read(self) -> NetworkState:
        """What the node's namespace holds, without detached devices."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Removes devices of the node."""
        ...

    def present(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        """The attachments whose device exists."""
        ...

    def hold(self, state: NetworkState) -> Sequence[str]:
        """Makes the node's namespace hold all routes and neighbours of pods; the failures as text."""
        ...

    def default_families(self, netns: str) -> frozenset[int]:
        """The IP families in which a pod has a default route.

        Raises: KernelError.
        """
        ...

    def is_network(self, netns: str) -> bool:
        """Whether a path leads to a network namespace."""
        ...

    def is_own(self, netns: str) -> bool:
        """Whether a namespace is the node's own."""
        ...


class Attachments:
    """The attachments of one node, with what holds them: leases, kernel and policy gate."""

    def __init__(self, leases: Leases, plumber: Plumber) -> None:
        self.gate: PolicyGate = OpenGate()
        self.leases = leases
        self.plumber = plumber
        self._log = Log("cni")
        self._released: set[str] = set()
        self._with_new_ports: dict[AttachmentKey, Attachment] = {}
        self._port_planner = ports.PortPlanner()
        self.report_guard: Callable[[str, str], None] = lambda _guard, _problem: None
        """Called with the name of a guard and the reason why it does not check source addresses; empty: it does."""

    @property
    def by_key(self) -> Mapping[AttachmentKey, Attachment]:
        """The attachments in the ledger."""
        return self.leases.held

    def of_container(self, container: str) -> list[Attachment]:
        """The attachments of one container."""
        return [self.by_key[key] for key in self.leases.containers.get(container, ())]

    def reserve(
        self, request: CniRequest, node: WiringFacts, beside: Collection[int] = (), foreign: Sequence[Address] = ()
    ) -> tuple[Attachment, Wiring]:
        """Chooses addresses and begins to write them to disk; on failure no address is held.

        ``leases.facts.wait`` must follow before ADD is answered. The arguments are those of :meth:`choose`.

        Raises: CniError.
        """
        attachment, planned = self.choose(request, node, beside, foreign)
        try:
            self.leases.hold(attachment, waits=False)
        except CniError:
            self.leases.put_back(attachment.ips)
            raise
        return attachment, planned

    def choose(
        self, request: CniRequest, node: WiringFacts, beside: Collection[int] = (), foreign: Sequence[Address] = ()
    ) -> tuple[Attachment, Wiring]:
        """Chooses addresses, in memory only, and plans the wiring; on failure no address is taken.

        ``leases.hold`` or ``leases.put_back`` must follow.

        ``foreign`` are the addresses that another IPAM plugin assigned; podwire chooses none then. ``beside`` are the
        IP families in which another interface of the pod has the default route.

        Raises: CniError.
        """
        interfaces = self.of_container(request.key.container)
        mac = requested.mac(request)
        if foreign:
            addresses = self.leases.take(foreign)
        else:
            addresses_asked = requested.addresses(request, first=not interfaces)
            addresses = self.leases.choose(addresses_asked, chosen_network(request.conf.runtime_config.annotations))
        try:
            attachment = wiring.attach(request, addresses, node, mac)
            if foreign:
                attachment = replace(attachment, pod_network="")
            if interfaces or beside:
                table = wiring.free_table(interfaces)
                attachment = replace(attachment, beside=tuple(sorted(beside)), table=table)
            planned = wiring.plan(attachment, node)
        except ValueError as problem:
            self.leases.put_back(addresses)
            raise CniError(spec.INVALID_CONFIG, f"cannot plan {request.pod_name}", str(problem)) from problem
        except CniError:
            self.leases.put_back(addresses)
            raise
        return attachment, planned

    def undo(self, *attachments: Attachment) -> None:
        """Takes back attachments whose ADD failed.

        Raises: KernelError; the addresses are free all the same.
        """
        try:
            self.plumber.unwire(attachments)
        finally:
            self.leases.release(attachments)
            for attachment in attachments:
                self.gate.detach(attachment)
            self._take_out_of_tables(attachments)

    def remove(self, attachments: Sequence[Attachment]) -> None:
        """Unwires pods, then deletes their attachments from the ledger.

        Raises: KernelError, CniError.
        """
        if not attachments:
            return
        self.plumber.unwire(attachments)
        self.leases.release(attachments)
        for attachment in attachments:
            self.gate.detach(attachment)
        self._released.update(ip for attachment in attachments for ip in attachment.addresses)
        self._take_out_of_tables(attachments)

    def _take_out_of_tables(self, removed: Sequence[Attachment]) -> None:
        """Raises: KernelError."""
        if any(attachment.ports and attachment.bridge for attachment in removed):
            self.close_loopback()
        self.hold_tables_of(removed)

    def hold_tables_of(self, changed: Sequence[Attachment]) -> None:
        """Makes the kernel hold the tables in which added or removed attachments have elements.

        Raises: KernelError.
        """
        if any(attachment.bridge for attachment in changed):
            self.hold_guard()
        if any(map(sourceguard.is_guarded, changed)):
            self.hold_sources()
        if any(attachment.ports for attachment in changed):
            self.hold_ports()

    def drifted_tables(self, attachment: Attachment) -> list[str]:
        """The tables with elements of an attachment that differ from the ones that are held, as text.

        Raises: KernelError.
        """
        tables = (
            (bool(attachment.ports), self.plumber.ports.table, f"inet {ports.TABLE} with the hostPorts"),
            (
                bool(attachment.bridge),
                self.plumber.guards.bridge,
                f"{bridgeguard.FAMILY} {bridgeguard.TABLE} with the addresses",
            ),
            (
                sourceguard.is_guarded(attachment),
                self.plumber.guards.devices,
                f"{sourceguard.FAMILY} {sourceguard.TABLE} with the addresses",
            ),
        )
        return [f"table {text} of the pod" for has_elements, table, text in tables if has_elements and table.drifted()]

    def remove_vanished(self, attachments: Sequence[Attachment], reason: str) -> None:
        """Removes attachments of pods that vanished without a DEL, and logs the reason.

        Raises: KernelError, CniError.
        """
        self.remove(attachments)
        for attachment in attachments:
            self._log.warning(
                "released the addresses of a pod that vanished without a DEL",
                pod=f"{attachment.namespace}/{attachment.pod}",
                key=str(attachment.key),
                addresses=",".join(attachment.addresses),
                reason=reason,
            )

    def hold_ports(self) -> None:
        """Makes the kernel hold the hostPort table.

        Raises: KernelError.
        """
        table, change = self._port_planner.plan(self.leases.held.values())
        self.plumber.ports.table.hold(table, change)

    def close_loopback(self) -> None:
        """Keeps packets of the bridge from the node's loopback network unless a pod on the bridge needs them.

        To be called before :meth:`hold_ports`, which takes the guard of the loopback network away.

        Raises: KernelError.
        """
        held = self.leases.held.values()
        if not any(ports.on_loopback(attachment.ports) for attachment in held if attachment.bridge):
            self.plumber.bridge.close_loopback()

    def hold_guard(self) -> None:
        """Makes the kernel keep pods on the bridge to their own addresses; a kernel that cannot is reported.

        Raises: KernelError.
        """
        table = bridgeguard.plan(self.leases.held.values())
        self._hold_guard(
            "bridge guard", self.plumber.guards.bridge, table, "pods on the bridge can use each other's addresses"
        )

    def hold_sources(self) -> None:
        """Makes the kernel keep pods with own devices to their IPv6 addresses; a kernel that cannot is reported.

        Raises: KernelError.
        """
        table = sourceguard.plan(self.leases.held.values())
        self._hold_guard("source guard", self.plumber.guards.devices, table, "pods can use each other's IPv6 addresses")

    def _hold_guard(self, name: str, holder: TableHolder, table: Table | None, consequence: str) -> None:
        problem = ""
        try:
            holder.hold(table)
        except Unsupported as missing:
            problem = f"{consequence}: {missing}"
        self.report_guard(name, problem)

    def got_ports(self, attachment: Attachment) -> None:
        """Takes note of an attachment whose hostPorts may have stale connections."""
        if attachment.ports:
            self._with_new_ports[attachment.key] = attachment

    def take_new_ports(self) -> list[Attachment]:
        """The attachments of :meth:`got_ports` since the last call that are still held."""
        fresh = [self.leases.held[key] for key in self._with_new_ports if key in self.leases.held]
        self._with_new_ports.clear()
        return fresh

    def take_released(self) -> frozenset[str]:
        """The addresses released since the last call that no pod holds again: their connections may be deleted."""
        held = {ip for attachment in self.leases.held.values() for ip in attachment.addresses}
        released = frozenset(self._released - held)
        self._released.clear()
        return released

    def shares(self, node: WiringFacts) -> Iterator[Share]:
        """The desired kernel state: the node's side of all pods with their hostPorts, then each pod's own side."""
        attachments = list(self.leases.held.values())
        table = ports.plan(attachments)
        mark = wiring.OWNER.route_protocol
        port_table = AbsentTable("inet", ports.TABLE) if table is None else table.canonical()
        tables: list[Table | AbsentTable] = [port_table]
        if self.plumber.guards.bridge.supported:
            guard = bridgeguard.plan(attachments)
            absent = AbsentTable(bridgeguard.FAMILY, bridgeguard.TABLE)
            tables.append(absent if guard is None else guard.canonical())
        if self.plumber.guards.devices.supported:
            sources = sourceguard.plan(attachments)
            absent = AbsentTable(sourceguard.FAMILY, sourceguard.TABLE)
            tables.append(absent if sources is None else sources.canonical())
        yield Share(part="cni", protocol=mark, desired=(wiring.merged(attachments, node), *tables))
        by_netns: dict[str, list[Attachment]] = {}
        for attachment in attachments:
            if attachment.netns:
                by_netns.setdefault(attachment.netns, []).append(attachment)
        for netns, interfaces in by_netns.items():
            yield Share(
                part="cni",
                protocol=mark,
                netns=netns,
                pod=wiring.pod_name(interfaces[0]),
                desired=(wiring.of_pod(interfaces, node),),
            )
