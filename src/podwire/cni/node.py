"""Handles the CNI commands of one node: addresses come from the ledger, the wiring is made in the kernel.

The order of the steps is chosen so that a killed agent leaves nothing that the next start cannot repair.
ADD: choose addresses, write the attachment to disk, wire the pod. DEL: unwire the pod, then delete the attachment on
disk. So at every moment the ledger has every attachment that the kernel has, and :meth:`PodNetwork.recover` at the next
start finishes interrupted requests: the addresses of an attachment without a device are given back, a device of podwire
without an attachment is removed. A failed ADD undoes its changes before it answers. DEL of an unknown pod succeeds.

DEL does not wait until the kernel has taken the device away (16 to 28 ms each, one after the other): it removes
routes and neighbours and leaves the device to a later group delete. Measured in the agent: ADD about 1 ms, DEL 0.15.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from podwire.cni import ports, spec, wiring
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.pinned import pinned
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.cni.wiring import Wiring, WiringFacts
from podwire.errors import CniError, KernelError, KernelExists, KernelNotFound
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table
from podwire.state.share import Share

ALREADY_ATTACHED = 101
IFNAME_EXISTS = 102
HOST_PORT_HELD = 103
_SWEEPS_WITHOUT_DEVICE = 2
"""An attachment is released after this many consecutive sweeps, a minute apart, that do not find its device."""


class Plumber(Protocol):
    """The kernel operations that CNI needs; all calls are short."""

    def wire(self, planned: Wiring, netns: str) -> bool:
        """Creates a pod's devices; returns whether packets pass already.

        Raises: KernelExists when the pod has the interface or the node has the device name; KernelError. Nothing is
        left behind.
        """
        ...

    def unwire(self, attachments: Iterable[Attachment]) -> None:
        """Deletes pods' routes and neighbours at once and their devices soon; missing ones are ignored."""
        ...

    def rewire(self, attachments: Iterable[Attachment], node: WiringFacts) -> None:
        """Gives running pods another MTU."""
        ...

    def missing(self, planned: Wiring, netns: str) -> list[str]:
        """The lines of a wiring that the kernel does not hold."""
        ...

    def read(self) -> NetworkState:
        """What the node's namespace holds."""
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

    def is_own(self, netns: str) -> bool:
        """Whether a namespace is the node's own."""
        ...

    def hold_ports(self, table: Table | None) -> None:
        """Makes the kernel hold the hostPort table."""
        ...


class PolicyGate(Protocol):
    """Puts a pod's policies in force before the pod gets its devices."""

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Returns what to await before a request is handled; None: the request can be handled at once.

        Raises: CniError, also when awaited, when the wait took too long.
        """
        ...

    def attach(self, attachment: Attachment) -> None:
        """Called before a pod is wired.

        Raises: KernelError; the pod is not wired then.
        """
        ...

    def detach(self, attachment: Attachment) -> None:
        """Called after a pod was unwired."""
        ...


class OpenGate:
    """The gate of a node without policy enforcement."""

    def before(self, _request: CniRequest) -> Awaitable[None] | None:
        """Returns None: no request has to wait."""
        return None

    def attach(self, attachment: Attachment) -> None:
        """Does nothing."""

    def detach(self, attachment: Attachment) -> None:
        """Does nothing."""


class PodNetwork:
    """Answers CNI requests; ``node`` returns the current facts of the node that the wiring depends on."""

    def __init__(self, leases: Leases, plumber: Plumber, node: Callable[[], WiringFacts]) -> None:
        self.gate: PolicyGate = OpenGate()
        self._leases = leases
        self._plumber = plumber
        self._node = node
        self._log = Log("cni")
        self._suspects: dict[AttachmentKey, int] = {}
        self._released: set[str] = set()
        self._not_ready: dict[AttachmentKey, Wiring] = {}
        self._last_node = node()
        self.counts: dict[tuple[str, str], int] = {}

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Returns what to await before a request is handled; None: the request can be handled at once.

        Raises: CniError.
        """
        return self.gate.before(request)

    def take_not_ready(self, request: CniRequest) -> Wiring | None:
        """The wiring of a request's pod when its interfaces do not forward yet; each wiring is returned once."""
        return self._not_ready.pop(request.key, None) if request.command == "ADD" else None

    def handle(self, request: CniRequest, netns: str) -> bytes:
        """Handles a request and returns the text for its standard output.

        Raises: CniError.
        """
        verbs = {"ADD": self.add, "DEL": self.delete, "CHECK": self.check, "STATUS": self.status, "GC": self.collect}
        outcome = "failed"
        if request.conf.policy and request.command == "ADD":
            detail = "policy: true is for nodes whose pods other plugins wire (agent without the part cni)"
            raise CniError(spec.INVALID_CONFIG, "the podwire agent of this node makes the pods' network itself", detail)
        try:
            if request.command == "VERSION":
                answer = spec.render_versions(request.conf.cni_version)
            else:
                answer = verbs[request.command](request, netns)
            outcome = "done"
        finally:
            key = (request.command, outcome)
            self.counts[key] = self.counts.get(key, 0) + 1
        return answer

    def add(self, request: CniRequest, netns: str) -> bytes:
        """Wires a pod; returns the CNI result with its addresses."""
        self._check_namespace(request, netns)
        self._check_not_attached(request.key)
        self._check_ports(request.conf.runtime_config.port_mappings)
        node = self._node()
        attachment, planned = self._reserve(request, node)
        try:
            self.gate.attach(attachment)
            if not self._plumber.wire(planned, netns):
                self._not_ready[request.key] = planned
            if attachment.ports:
                self._hold_ports()
        except KernelError as failure:
            self._undo(attachment)
            raise _add_failure(failure, request, attachment) from failure
        self._log.info(
            "pod added", pod=request.pod_name, addresses=",".join(attachment.addresses), link=attachment.host_link
        )
        return spec.render_result(wiring.result(attachment, node, request.conf.dns), request.conf.cni_version)

    def delete(self, request: CniRequest, _netns: str) -> bytes:
        """Removes a pod's network; without effect when the pod has none."""
        attachment = self._leases.held.get(request.key)
        if attachment is not None:
            self._drop([attachment])
            self._log.info("pod deleted", pod=request.pod_name, addresses=",".join(attachment.addresses))
        return b""

    def check(self, request: CniRequest, netns: str) -> bytes:
        """Compares a pod's wiring in the kernel with its plan.

        Raises: CniError when they differ.
        """
        attachment = self._leases.held.get(request.key)
        if attachment is None:
            raise CniError(spec.UNKNOWN_CONTAINER, f"{request.key} is not attached")
        self._check_namespace(request, netns)
        if request.conf.prev_result is not None:
            earlier = spec.addresses_of(spec.parse_result(request.conf.prev_result, request.conf.cni_version))
            if lacking := [str(ip) for ip in attachment.ips if ip not in earlier]:
                raise CniError(spec.CHECK_FAILED, f"prevResult lacks {', '.join(lacking)} of {request.key}")
        try:
            missing = self._plumber.missing(wiring.plan(attachment, self._node()), netns)
        except KernelError as failure:
            raise CniError(spec.CHECK_FAILED, f"{request.key} cannot be read", str(failure)) from failure
        if missing:
            raise CniError(spec.CHECK_FAILED, f"the network of {request.key} is incomplete", "; ".join(missing))
        return b""

    def status(self, request: CniRequest, _netns: str) -> bytes:
        """Checks that pods can be added.

        Raises: CniError 50 when they cannot.
        """
        if not self._leases.pools:
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, "the node has no pod CIDR yet")
        if exhausted := self._leases.exhausted():
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, f"no free address in {', '.join(exhausted)}")
        return b""

    def collect(self, request: CniRequest, _netns: str) -> bytes:
        """Removes every attachment of the network that the runtime does not name."""
        kept = request.conf.kept
        if kept is None or request.conf.disable_gc:
            return b""
        stale = [
            attachment
            for key, attachment in self._leases.held.items()
            if key.network == request.conf.name and (key.container, key.ifname) not in kept
        ]
        self._drop(stale)
        self._report_collected(stale, "not named by the runtime")
        return b""

    def recover(self, network: str) -> None:
        """At start: finishes the requests that a killed agent had begun, and restores the hostPort table.

        Wired pods that are missing in the ledger are taken over under the network's name.
        """
        have = self._plumber.read()
        lost_attachments = [
            attachment for attachment in self._leases.held.values() if not wiring.is_complete(have, attachment)
        ]
        self._drop(lost_attachments)
        self._report_collected(lost_attachments, "its device is gone or was never finished")
        for attachment in wiring.missing_in_ledger(have, self._leases.held, network):
            self._leases.adopt(attachment)
            self._log.warning(
                "restored an attachment from the kernel: the address ledger does not have it",
                key=str(attachment.key),
                addresses=",".join(attachment.addresses),
            )
        self._remove_strays(have)
        self._hold_ports()

    def sweep(self) -> None:
        """To be called every minute: releases attachments whose device has been missing for two calls.

        The hostPort table is restored too.
        """
        have = self._plumber.read()
        gone = {key for key, attachment in self._leases.held.items() if have.link(attachment.host_link) is None}
        self._suspects = {key: self._suspects.get(key, 0) + 1 for key in gone}
        lost_attachments = [
            self._leases.held[key] for key, count in self._suspects.items() if count >= _SWEEPS_WITHOUT_DEVICE
        ]
        self._drop(lost_attachments)
        self._report_collected(lost_attachments, "its device has been gone for a minute")
        self._remove_strays(have)
        if any(attachment.ports for attachment in self._leases.held.values()):
            self._hold_ports()

    def take_released(self) -> frozenset[str]:
        """The addresses released since the last call that no pod holds again: their connections may be deleted."""
        held = {ip for attachment in self._leases.held.values() for ip in attachment.addresses}
        released = frozenset(self._released - held)
        self._released.clear()
        return released

    def node_changed(self) -> None:
        """To be called when the node's MTU may have changed: running pods get the new MTU."""
        node = self._node()
        previous, self._last_node = self._last_node, node
        if node.mtu != previous.mtu:
            self._plumber.rewire(self._leases.held.values(), node)

    def heal(self, *, sysctls: bool = True) -> Sequence[str]:
        """Restores the node's side of running pods after changes by other programs; returns the failures as text.

        A deleted device cannot be created again, since its other end is gone too: ``sweep`` releases the attachment.
        """
        attachments = self._plumber.present(self._leases.held.values())
        state = wiring.merged(attachments, self._node())
        return self._plumber.hold(state if sysctls else replace(state, sysctls=()))

    def shares(self) -> Iterator[Share]:
        """The desired kernel state: the node's side of all pods with their hostPorts, then each pod's own side."""
        node, attachments = self._node(), list(self._leases.held.values())
        table = ports.plan(attachments)
        mark = wiring.OWNER.route_protocol
        port_table = AbsentTable("inet", ports.TABLE) if table is None else table.canonical()
        yield Share(part="cni", protocol=mark, desired=(wiring.merged(attachments, node), port_table))
        for attachment in attachments:
            if attachment.netns:
                yield Share(
                    part="cni",
                    protocol=mark,
                    netns=attachment.netns,
                    pod=wiring.pod_name(attachment),
                    desired=(wiring.plan(attachment, node).pod,),
                )

    def samples(self) -> list[Sample]:
        """The metrics of CNI and of address management."""
        samples = [
            Sample(
                "podwire_cni_requests_total",
                "CNI requests.",
                count,
                {"command": command, "outcome": outcome},
                kind="counter",
            )
            for (command, outcome), count in sorted(self.counts.items())
        ]
        for pool in self._leases.pools:
            cidr = str(pool.network)
            for state, value in (("held", pool.held), ("free", pool.free)):
                samples.append(
                    Sample("podwire_ipam_addresses", "Addresses of a pod CIDR.", value, {"cidr": cidr, "state": state})
                )
        samples.append(
            Sample(
                "podwire_ipam_early_total",
                "Addresses handed out before their cooldown had ended.",
                self._leases.early,
                kind="counter",
            )
        )
        return samples

    def _check_namespace(self, request: CniRequest, netns: str) -> None:
        if not netns:
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} cannot be opened")
        if self._plumber.is_own(netns):
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} is the node's own namespace")

    def _check_not_attached(self, key: AttachmentKey) -> None:
        attachment = self._leases.held.get(key)
        if attachment is None:
            return
        if self._plumber.read().link(attachment.host_link) is not None:
            raise CniError(ALREADY_ATTACHED, f"{key} is attached already", f"with {', '.join(attachment.addresses)}")
        self._drop([attachment])

    def _check_ports(self, mappings: tuple[spec.PortMapping, ...]) -> None:
        for mapping in mappings:
            ports.check(mapping)
        if mappings and (holder := ports.taken(mappings, self._leases.held.values())):
            raise CniError(HOST_PORT_HELD, "a hostPort is in use", holder)

    def _reserve(self, request: CniRequest, node: WiringFacts) -> tuple[Attachment, Wiring]:
        """Chooses addresses and writes them to disk; on failure no address is held."""
        addresses = self._leases.choose(pinned(request.conf.runtime_config.annotations))
        try:
            attachment = wiring.attach(request, addresses)
            planned = wiring.plan(attachment, node)
            self._leases.hold(attachment)
        except ValueError as problem:
            self._leases.put_back(addresses)
            raise CniError(spec.INVALID_CONFIG, f"cannot plan {request.pod_name}", str(problem)) from problem
        except CniError:
            self._leases.put_back(addresses)
            raise
        return attachment, planned

    def _undo(self, attachment: Attachment) -> None:
        try:
            self._plumber.unwire([attachment])
        finally:
            self._leases.release([attachment])
            self.gate.detach(attachment)

    def _drop(self, attachments: list[Attachment]) -> None:
        if not attachments:
            return
        self._plumber.unwire(attachments)
        self._leases.release(attachments)
        for attachment in attachments:
            self.gate.detach(attachment)
        self._released.update(ip for attachment in attachments for ip in attachment.addresses)
        if any(attachment.ports for attachment in attachments):
            self._hold_ports()

    def _hold_ports(self) -> None:
        self._plumber.hold_ports(ports.plan(self._leases.held.values()))

    def _remove_strays(self, have: NetworkState) -> None:
        known = {(key.container, key.ifname) for key in self._leases.held}
        strays = [link.name for link in have.links if (o := wiring.owner_of(link)) is not None and o not in known]
        if strays:
            self._plumber.remove(strays)
            self._log.warning("removed devices that belong to no attached pod", links=",".join(strays))

    def _report_collected(self, attachments: Iterable[Attachment], reason: str) -> None:
        for attachment in attachments:
            self._log.warning(
                "released the addresses of a pod that vanished without a DEL",
                pod=f"{attachment.namespace}/{attachment.pod}",
                key=str(attachment.key),
                addresses=",".join(attachment.addresses),
                reason=reason,
            )


def _add_failure(failure: KernelError, request: CniRequest, attachment: Attachment) -> CniError:
    if isinstance(failure, KernelExists):
        return CniError(
            IFNAME_EXISTS,
            f"{attachment.key.ifname} exists in {request.netns} already, or {attachment.host_link} on the node",
            str(failure),
        )
    if isinstance(failure, KernelNotFound):
        return CniError(spec.TRY_LATER, f"the namespace of {request.pod_name} was deleted during ADD", str(failure))
    return CniError(spec.INTERNAL, f"cannot make the network of {request.pod_name}", str(failure))
