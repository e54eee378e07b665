"""Handles the CNI commands of one node: addresses come from the ledger, the wiring is made in the kernel.

The order of the steps is chosen so that a killed agent leaves nothing that the next start cannot repair.
ADD: choose addresses, write the attachment to disk, wire the pod. DEL: unwire the pod, then delete the attachment on
disk. So at every moment the ledger has every attachment that the kernel has, and the next start finishes interrupted
requests (:mod:`podwire.cni.repair`): the addresses of an attachment without a device are freed, a device of podwire
without an attachment is removed. A failed ADD undoes its changes before it answers. DEL of an unknown pod succeeds.

DEL does not wait until the kernel has taken the device away (16 to 28 ms each, one after the other): it removes
routes and neighbours and leaves the device to a later group delete. Measured in the agent: ADD about 1 ms, DEL 0.15.
"""

from collections.abc import Awaitable, Callable

from podwire.cni import delegation, loopback, ports, spec, wiring
from podwire.cni.attachments import Attachments
from podwire.cni.chain.bandwidth import TYPE as BANDWIDTH
from podwire.cni.chain.bandwidth import BandwidthPlugin
from podwire.cni.chain.facts import ChainedPlugin
from podwire.cni.chain.firewall import TYPE as FIREWALL
from podwire.cni.chain.firewall import FirewallPlugin
from podwire.cni.chain.tuning import TYPE as TUNING
from podwire.cni.chain.tuning import TuningPlugin
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ipam.lending import AddressLending
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.cni.wiring import Wiring, WiringFacts
from podwire.errors import CniError, KernelError, KernelExists, KernelNotFound, PodwireError
from podwire.observe.log import Log

ALREADY_ATTACHED = 101
IFNAME_EXISTS = 102
HOST_PORT_HELD = 103
FIRST = "eth0"
"""The interface that runtimes add first."""
_NO_DNS = spec.Dns()


class PodNetwork:
    """Answers CNI requests; ``node`` returns the current facts of the node that the wiring depends on.

    ``problem`` returns why the node has no addresses for pods; empty: it has some, or gets some on request.
    """

    def __init__(self, attachments: Attachments, node: Callable[[], WiringFacts], problem: Callable[[], str]) -> None:
        self._attachments = attachments
        self._problem = problem
        self._leases = attachments.leases
        self._plumber = attachments.plumber
        self._node = node
        self._log = Log("cni")
        self.lending = AddressLending(self._leases)
        self._chained: dict[str, ChainedPlugin] = {
            TUNING: TuningPlugin(self._plumber.tuning, self._leases.facts),
            FIREWALL: FirewallPlugin(self._plumber.filter, self._plumber.zones, self._leases.facts),
            BANDWIDTH: BandwidthPlugin(self._plumber.shaping, self._leases.facts),
        }
        self.not_ready: dict[AttachmentKey, Wiring] = {}
        """The wiring of pods whose interfaces do not forward yet, until :meth:`take_not_ready`."""
        self.requests: dict[tuple[str, str], int] = {}
        """The numbers of requests by command and outcome, ``done``, ``failed`` or ``delegated``."""

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Returns what to await before a request is handled; None: the request can be handled at once.

        Raises: CniError.
        """
        if request.conf.lends or is_beside(request):
            return None
        return self._attachments.gate.before(request)

    def take_not_ready(self, request: CniRequest) -> Wiring | None:
        """The wiring of a request's pod when its interfaces do not forward yet; each wiring is returned once."""
        return self.not_ready.pop(request.key, None) if request.command == "ADD" else None

    def handle(self, request: CniRequest, netns: str) -> bytes:
        """Handles a request and returns the text for its standard output.

        Raises: CniError.
        """
        if request.conf.lends:
            return self.lending.handle(request)
        if is_beside(request) and request.command != "VERSION":
            return self._beside(request, netns)
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
        except delegation.Demand:
            outcome = "delegated"
            raise
        finally:
            self.count(request, outcome)
        return answer

    def add(self, request: CniRequest, netns: str) -> bytes:
        """Wires a pod; returns the CNI result with its addresses."""
        self.check_addition(request, netns)
        foreign = delegation.foreign(request.conf)
        assigned = delegation.outcome(request) if foreign else spec.CniResult()
        try:
            return self._add(request, netns, assigned)
        except (CniError, KernelError) as problem:
            if not foreign:
                raise
            failure = problem if isinstance(problem, CniError) else CniError(spec.INTERNAL, str(problem))
            final = b"\1" + spec.render_error(failure, request.conf.cni_version)
            raise delegation.Demand("DEL", foreign, final) from problem

    def _add(self, request: CniRequest, netns: str, assigned: spec.CniResult) -> bytes:
        """Wires a pod, with the addresses that another IPAM plugin assigned or with podwire's own."""
        foreign = spec.addresses_of(assigned)
        if delegation.foreign(request.conf) and not foreign:
            raise CniError(spec.INVALID_CONFIG, f"the IPAM plugin {request.conf.ipam.type} assigned no address")
        node, beside = self._node(), self._default_families(request, netns)
        try:
            attachment = self._wire(request, netns, node, beside, foreign)
        except _DefaultRouteExists as conflict:
            attachment = self._wire(request, netns, node, conflict.families, foreign)
        return self.added(request, attachment, node, assigned.dns)

    def check_addition(self, request: CniRequest, netns: str) -> None:
        """Checks what a pod needs before addresses are chosen.

        Raises: CniError, KernelError.
        """
        self._check_namespace(request, netns)
        self._check_not_attached(request.key)
        self._check_ports(request.conf.runtime_config.port_mappings)

    def added(self, request: CniRequest, attachment: Attachment, node: WiringFacts, dns: spec.Dns = _NO_DNS) -> bytes:
        """The CNI result of a wired pod; ``dns`` are the settings that another IPAM plugin has."""
        self._log.info(
            "pod added", pod=request.pod_name, addresses=",".join(attachment.addresses), link=attachment.host_link
        )
        dns = dns if dns != _NO_DNS else _dns(request)
        return spec.render_result(wiring.result(attachment, node, dns), request.conf.cni_version)

    def count(self, request: CniRequest, outcome: str) -> None:
        """Counts a request for the metrics."""
        key = (request.command, outcome)
        self.requests[key] = self.requests.get(key, 0) + 1

    def _default_families(self, request: CniRequest, netns: str) -> frozenset[int]:
        """The IP families in which another interface of the pod has the default route.

        It is read only for interfaces that are unlikely to be the first: an ADD of ``eth0`` stays short.
        """
        if request.key.ifname == FIRST and not self._attachments.of_container(request.key.container):
            return frozenset()
        try:
            return self._plumber.default_families(netns)
        except KernelError as failure:
            raise _add_failure(failure, request) from failure

    def _wire(
        self,
        request: CniRequest,
        netns: str,
        node: WiringFacts,
        beside: frozenset[int],
        foreign: tuple[spec.Address, ...],
    ) -> Attachment:
        """Wires a pod.

        Raises: _DefaultRouteExists when another interface has a default route of a family that is not in ``beside``;
        CniError. Nothing is left behind then.
        """
        attachment, planned = self._attachments.reserve(request, node, beside, foreign)
        try:
            if (bridge := wiring.bridge_of([attachment], node)) is not None:
                self._plumber.bridge.hold(bridge)  # Policies read how the bridge forwards.
            self._attachments.gate.attach(attachment)
            if foreign:
                self._plumber.prepare({ip.version for ip in foreign})
            self._attachments.hold_tables_of([attachment])  # The guards come before the device.
            if not self._plumber.wire(planned, netns):
                self.not_ready[request.key] = planned
            self._leases.facts.wait()
        except CniError:
            self._attachments.undo(attachment)
            raise
        except KernelError as failure:
            self._attachments.undo(attachment)
            if isinstance(failure, KernelExists):
                families = self._plumber.default_families(netns) | beside
                if families != beside:
                    raise _DefaultRouteExists(families) from failure
            raise _add_failure(failure, request, attachment) from failure
        self._attachments.got_ports(attachment)
        return attachment

    def delete(self, request: CniRequest, _netns: str) -> bytes:
        """Removes a pod's network; without effect when the pod has none."""
        attachment = self._attachments.by_key.get(request.key)
        self.lending.forget(request.key)
        if attachment is not None:
            self._attachments.remove([attachment])
            self._log.info("pod deleted", pod=request.pod_name, addresses=",".join(attachment.addresses))
        if delegation.foreign(request.conf):
            delegation.outcome(request)
        return b""

    def check(self, request: CniRequest, netns: str) -> bytes:
        """Compares a pod's wiring in the kernel with its plan.

        Raises: CniError when they differ.
        """
        if request.conf.disable_check:
            return b""
        if delegation.foreign(request.conf):
            delegation.outcome(request)
        attachment = self._attachments.by_key.get(request.key)
        if attachment is None:
            raise CniError(spec.UNKNOWN_CONTAINER, f"{request.key} is not attached")
        self._check_namespace(request, netns)
        if request.conf.prev_result is None:
            raise CniError(spec.INVALID_CONFIG, "CHECK needs prevResult", "expected the result of ADD")
        earlier = spec.addresses_of(spec.parse_result(request.conf.prev_result, request.conf.cni_version))
        if lacking := [str(ip) for ip in attachment.ips if ip not in earlier]:
            raise CniError(spec.CHECK_FAILED, f"prevResult lacks {', '.join(lacking)} of {request.key}")
        try:
            missing = self._plumber.missing(wiring.plan(attachment, self._node()), netns)
            missing += self._attachments.drifted_tables(attachment)
        except KernelError as failure:
            raise CniError(spec.CHECK_FAILED, f"{request.key} cannot be read", str(failure)) from failure
        if missing:
            raise CniError(spec.CHECK_FAILED, f"the network of {request.key} is incomplete", "; ".join(missing))
        return b""

    def status(self, request: CniRequest, _netns: str) -> bytes:
        """Checks that pods can be added.

        Raises: CniError 50 when they cannot.
        """
        if delegation.foreign(request.conf):
            delegation.outcome(request)
            return b""
        if problem := self._problem():
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, problem)
        try:
            self._leases.check_disk()
        except CniError as failure:
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, failure.message, failure.details) from failure
        return b""

    def collect(self, request: CniRequest, _netns: str) -> bytes:
        """Removes every attachment of the network that the runtime does not name."""
        valid_attachments = request.conf.attachments_in_use
        if valid_attachments is None or request.conf.disable_gc:
            return b""
        stale = [
            attachment
            for key, attachment in self._attachments.by_key.items()
            if key.network == request.conf.name and (key.container, key.ifname) not in valid_attachments
        ]
        self._attachments.remove_vanished(stale, "not named by the runtime")
        if delegation.foreign(request.conf):
            delegation.outcome(request)
        return b""

    def _beside(self, request: CniRequest, netns: str) -> bytes:
        """Handles a request of the plugin ``loopback`` or of a chained plugin."""
        if request.command in ("ADD", "CHECK"):
            self._check_namespace(request, netns)
        elif netns and (not self._plumber.is_network(netns) or self._plumber.is_own(netns)):
            netns = ""
        if loopback.is_for(request):
            return loopback.handle(request, netns, self._plumber.loopback)
        return self._chained[request.conf.type].handle(request, netns)

    def _check_namespace(self, request: CniRequest, netns: str) -> None:
        if not netns:
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} cannot be opened")
        if not self._plumber.is_network(netns):
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} is not a network namespace")
        if self._plumber.is_own(netns):
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} is the node's own namespace")

    def _check_not_attached(self, key: AttachmentKey) -> None:
        attachment = self._attachments.by_key.get(key)
        if attachment is None:
            return
        if self._plumber.read().link(attachment.host_link) is not None:
            raise CniError(ALREADY_ATTACHED, f"{key} is attached already", f"with {', '.join(attachment.addresses)}")
        self._attachments.remove([attachment])

    def _check_ports(self, mappings: tuple[spec.PortMapping, ...]) -> None:
        if holder := ports.holder_of(ports.checked(mappings), self._attachments.by_key.values()):
            raise CniError(HOST_PORT_HELD, "a hostPort is in use", holder)


def is_beside(request: CniRequest) -> bool:
    """Whether the runtime executed the program as a plugin that holds no address."""
    return loopback.is_for(request) or request.conf.type in spec.CHAINED_TYPES


class _DefaultRouteExists(PodwireError):
    """Another interface of the pod has a default route in each of ``families``."""

    def __init__(self, families: frozenset[int]) -> None:
        self.families = families
        super().__init__(f"default routes of the families {sorted(families)} exist")


def _dns(request: CniRequest) -> spec.Dns:
    """The resolver settings of the configuration, replaced by those that the runtime requests."""
    runtime = request.conf.runtime_config.dns
    if runtime == spec.RuntimeDns():
        return request.conf.dns
    domain = request.conf.dns.domain
    return spec.Dns(nameservers=runtime.servers, domain=domain, search=runtime.searches, options=runtime.options)


def _add_failure(failure: KernelError, request: CniRequest, attachment: Attachment | None = None) -> CniError:
    if isinstance(failure, KernelExists) and attachment is not None:
        return CniError(
            IFNAME_EXISTS,
            f"{request.key.ifname} exists in {request.netns} already, or {attachment.host_link} on the node",
            str(failure),
        )
    if isinstance(failure, KernelNotFound):
        return CniError(spec.TRY_LATER, f"the namespace of {request.pod_name} was deleted during ADD", str(failure))
    return CniError(spec.INTERNAL, f"cannot make the network of {request.pod_name}", str(failure))
