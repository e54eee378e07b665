"""The verbs of CNI on one node: addresses from the ledger, wiring by the kernel, in an order that survives a kill.

ADD: choose addresses, write the attachment durably, wire. DEL: unwire, then give back durably. So at every
moment what the kernel holds is a part of what the ledger holds, and :meth:`PodNetwork.recover` at the next start
finishes what was begun: an attachment without its device is given back, a device of ours without attachment
is removed. A failed ADD undoes itself before it answers. DEL of what is not there succeeds.

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
from podwire.cni.protocol import Key, Request
from podwire.cni.wiring import Node, Wiring
from podwire.errors import CniError, KernelError, KernelExists, KernelNotFound
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table
from podwire.state.share import Share

ALREADY_ATTACHED = 101
IFNAME_EXISTS = 102
HOST_PORT_HELD = 103
_OBSERVATIONS = 2
"""How often an attachment must be seen without its device, a minute apart, before it is given back."""


class Plumber(Protocol):
    """The kernel as CNI needs it; all calls are short."""

    def wire(self, planned: Wiring, netns: str) -> bool:
        """Makes a pod's devices; whether packets pass already.

        Raises: KernelExists when the pod has the interface or the node the name; KernelError; nothing is left.
        """
        ...

    def unwire(self, ones: Iterable[Attachment]) -> None:
        """Takes pods' routes and neighbours away at once, their devices soon; what is gone does no harm."""
        ...

    def rewire(self, ones: Iterable[Attachment], node: Node) -> None:
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

    def present(self, ones: Iterable[Attachment]) -> list[Attachment]:
        """Those that have their device."""
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

    def before(self, request: Request) -> Awaitable[None] | None:
        """What a request has to wait for; None: nothing.

        Raises: CniError, also when awaited, when it took too long.
        """
        ...

    def attach(self, one: Attachment) -> None:
        """Called before a pod is wired.

        Raises: KernelError; the pod is not wired then.
        """
        ...

    def detach(self, one: Attachment) -> None:
        """Called after a pod was taken away."""
        ...


class OpenGate:
    """Where nobody enforces policies."""

    def before(self, _request: Request) -> Awaitable[None] | None:
        """Nothing to wait for."""
        return None

    def attach(self, one: Attachment) -> None:
        """Lets it pass."""

    def detach(self, one: Attachment) -> None:
        """Nothing to forget."""


class PodNetwork:
    """Answers CNI requests; ``node`` gives the wiring's facts of the node at the time of each call."""

    def __init__(self, leases: Leases, plumber: Plumber, node: Callable[[], Node]) -> None:
        self.guard: PolicyGate = OpenGate()
        self._leases = leases
        self._plumber = plumber
        self._node = node
        self._log = Log("cni")
        self._suspects: dict[Key, int] = {}
        self._released: set[str] = set()
        self._late: dict[Key, Wiring] = {}
        self._node_seen = node()
        self.counts: dict[tuple[str, str], int] = {}

    def before(self, request: Request) -> Awaitable[None] | None:
        """What a request has to wait for; None: nothing.

        Raises: CniError.
        """
        return self.guard.before(request)

    def late(self, request: Request) -> Wiring | None:
        """The interfaces of a request's pod that do not forward yet; returned once."""
        return self._late.pop(request.key, None) if request.command == "ADD" else None

    def handle(self, request: Request, netns: str) -> bytes:
        """The standard output of a request.

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

    def add(self, request: Request, netns: str) -> bytes:
        """Wires a pod and answers its addresses."""
        self._check_namespace(request, netns)
        self._check_not_attached(request.key)
        self._check_ports(request.conf.runtime_config.port_mappings)
        node = self._node()
        one, planned = self._reserve(request, node)
        try:
            self.guard.attach(one)
            if not self._plumber.wire(planned, netns):
                self._late[request.key] = planned
            if one.ports:
                self._hold_ports()
        except KernelError as failure:
            self._undo(one)
            raise _add_failure(failure, request, one) from failure
        self._log.info("pod added", pod=request.pod_name, addresses=",".join(one.addresses), link=one.host_link)
        return spec.render_result(wiring.result(one, node, request.conf.dns), request.conf.cni_version)

    def delete(self, request: Request, _netns: str) -> bytes:
        """Removes a pod's network; without effect when the pod has none."""
        one = self._leases.held.get(request.key)
        if one is not None:
            self._drop([one])
            self._log.info("pod deleted", pod=request.pod_name, addresses=",".join(one.addresses))
        return b""

    def check(self, request: Request, netns: str) -> bytes:
        """Compares a pod's wiring with what it should be."""
        one = self._leases.held.get(request.key)
        if one is None:
            raise CniError(spec.UNKNOWN_CONTAINER, f"{request.key} is not attached")
        self._check_namespace(request, netns)
        if request.conf.prev_result is not None:
            earlier = spec.addresses_of(spec.parse_result(request.conf.prev_result, request.conf.cni_version))
            if lost := [str(ip) for ip in one.ips if ip not in earlier]:
                raise CniError(spec.CHECK_FAILED, f"prevResult lacks {', '.join(lost)} of {request.key}")
        try:
            missing = self._plumber.missing(wiring.plan(one, self._node()), netns)
        except KernelError as failure:
            raise CniError(spec.CHECK_FAILED, f"{request.key} cannot be read", str(failure)) from failure
        if missing:
            raise CniError(spec.CHECK_FAILED, f"the network of {request.key} is incomplete", "; ".join(missing))
        return b""

    def status(self, request: Request, _netns: str) -> bytes:
        """Whether pods can be added."""
        if not self._leases.pools:
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, "the node has no pod CIDR yet")
        if gone := self._leases.exhausted():
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, f"no free address in {', '.join(gone)}")
        return b""

    def collect(self, request: Request, _netns: str) -> bytes:
        """Removes every attachment of the network that the runtime does not name."""
        kept = request.conf.kept
        if kept is None or request.conf.disable_gc:
            return b""
        stale = [
            one
            for key, one in self._leases.held.items()
            if key.network == request.conf.name and (key.container, key.ifname) not in kept
        ]
        self._drop(stale)
        self._report_collected(stale, "not named by the runtime")
        return b""

    def recover(self, network: str) -> None:
        """At start: finishes what a killed agent had begun, and puts the hostPort table right.

        Wired pods that the ledger has lost are taken over under the network's name.
        """
        have = self._plumber.read()
        dead = [one for one in self._leases.held.values() if not wiring.complete(have, one)]
        self._drop(dead)
        self._report_collected(dead, "its device is gone or was never finished")
        for one in wiring.unknown(have, self._leases.held, network):
            self._leases.adopt(one)
            self._log.warning(
                "restored an attachment from the kernel: the address ledger does not have it",
                key=str(one.key),
                addresses=",".join(one.addresses),
            )
        self._remove_strays(have)
        self._hold_ports()

    def sweep(self) -> None:
        """To be called every minute: gives back attachments whose device has been gone for two calls.

        The hostPort table is put right too.
        """
        have = self._plumber.read()
        gone = {key for key, one in self._leases.held.items() if have.link(one.host_link) is None}
        self._suspects = {key: self._suspects.get(key, 0) + 1 for key in gone}
        dead = [self._leases.held[key] for key, seen in self._suspects.items() if seen >= _OBSERVATIONS]
        self._drop(dead)
        self._report_collected(dead, "its device has been gone for a minute")
        self._remove_strays(have)
        if any(one.ports for one in self._leases.held.values()):
            self._hold_ports()

    def forgotten(self) -> frozenset[str]:
        """The addresses given back since the last call that nobody holds again: their connections may go."""
        held = {ip for one in self._leases.held.values() for ip in one.addresses}
        gone = frozenset(self._released - held)
        self._released.clear()
        return gone

    def node_changed(self) -> None:
        """To be called when the node's MTU may have changed: running pods follow."""
        node = self._node()
        before, self._node_seen = self._node_seen, node
        if node.mtu != before.mtu:
            self._plumber.rewire(self._leases.held.values(), node)

    def heal(self, *, sysctls: bool = True) -> Sequence[str]:
        """Puts right what somebody changed of running pods on the node's side; the failures as text.

        A device that is gone cannot be made again, since its other end is gone too: ``sweep`` gives the pod back.
        """
        ones = self._plumber.present(self._leases.held.values())
        state = wiring.merged(ones, self._node())
        return self._plumber.hold(state if sysctls else replace(state, sysctls=()))

    def shares(self) -> Iterator[Share]:
        """What the kernel should hold: the node's side of all pods with their hostPorts, then each pod's own."""
        node, ones = self._node(), list(self._leases.held.values())
        table = ports.plan(ones)
        mark = wiring.OWNER.route_protocol
        stated = AbsentTable("inet", ports.TABLE) if table is None else table.canonical()
        yield Share(part="cni", protocol=mark, desired=(wiring.merged(ones, node), stated))
        for one in ones:
            if one.netns:
                yield Share(
                    part="cni",
                    protocol=mark,
                    netns=one.netns,
                    pod=wiring.pod_name(one),
                    desired=(wiring.plan(one, node).pod,),
                )

    def samples(self) -> list[Sample]:
        """The metrics of CNI and of address management."""
        found = [
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
                found.append(
                    Sample("podwire_ipam_addresses", "Addresses of a pod CIDR.", value, {"cidr": cidr, "state": state})
                )
        found.append(
            Sample(
                "podwire_ipam_early_total",
                "Addresses handed out before their cooldown had ended.",
                self._leases.early,
                kind="counter",
            )
        )
        return found

    def _check_namespace(self, request: Request, netns: str) -> None:
        if not netns:
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} cannot be opened")
        if self._plumber.is_own(netns):
            raise CniError(spec.INVALID_NETNS, f"CNI_NETNS {request.netns} is the node's own namespace")

    def _check_not_attached(self, key: Key) -> None:
        one = self._leases.held.get(key)
        if one is None:
            return
        if self._plumber.read().link(one.host_link) is not None:
            raise CniError(ALREADY_ATTACHED, f"{key} is attached already", f"with {', '.join(one.addresses)}")
        self._drop([one])

    def _check_ports(self, mappings: tuple[spec.PortMapping, ...]) -> None:
        for mapping in mappings:
            ports.check(mapping)
        if mappings and (holder := ports.taken(mappings, self._leases.held.values())):
            raise CniError(HOST_PORT_HELD, "a hostPort is in use", holder)

    def _reserve(self, request: Request, node: Node) -> tuple[Attachment, Wiring]:
        """Chooses addresses and makes them durable; on failure nothing is held."""
        addresses = self._leases.choose(pinned(request.conf.runtime_config.annotations))
        try:
            one = wiring.attach(request, addresses)
            planned = wiring.plan(one, node)
            self._leases.hold(one)
        except ValueError as problem:
            self._leases.put_back(addresses)
            raise CniError(spec.INVALID_CONFIG, f"cannot plan {request.pod_name}", str(problem)) from problem
        except CniError:
            self._leases.put_back(addresses)
            raise
        return one, planned

    def _undo(self, one: Attachment) -> None:
        try:
            self._plumber.unwire([one])
        finally:
            self._leases.release([one])
            self.guard.detach(one)

    def _drop(self, ones: list[Attachment]) -> None:
        if not ones:
            return
        self._plumber.unwire(ones)
        self._leases.release(ones)
        for one in ones:
            self.guard.detach(one)
        self._released.update(ip for one in ones for ip in one.addresses)
        if any(one.ports for one in ones):
            self._hold_ports()

    def _hold_ports(self) -> None:
        self._plumber.hold_ports(ports.plan(self._leases.held.values()))

    def _remove_strays(self, have: NetworkState) -> None:
        known = {(key.container, key.ifname) for key in self._leases.held}
        strays = [link.name for link in have.links if (o := wiring.owner_of(link)) is not None and o not in known]
        if strays:
            self._plumber.remove(strays)
            self._log.warning("removed devices that belong to no attached pod", links=",".join(strays))

    def _report_collected(self, ones: Iterable[Attachment], reason: str) -> None:
        for one in ones:
            self._log.warning(
                "released the addresses of a pod that vanished without a DEL",
                pod=f"{one.namespace}/{one.pod}",
                key=str(one.key),
                addresses=",".join(one.addresses),
                reason=reason,
            )


def _add_failure(failure: KernelError, request: Request, one: Attachment) -> CniError:
    if isinstance(failure, KernelExists):
        return CniError(
            IFNAME_EXISTS,
            f"{one.key.ifname} exists in {request.netns} already, or {one.host_link} on the node",
            str(failure),
        )
    if isinstance(failure, KernelNotFound):
        return CniError(spec.TRY_LATER, f"the namespace of {request.pod_name} was deleted during ADD", str(failure))
    return CniError(spec.INTERNAL, f"cannot make the network of {request.pod_name}", str(failure))
