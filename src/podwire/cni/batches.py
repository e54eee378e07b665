"""Requests that waited together: what they need once is done once.

While the agent handles a request, a runtime sends more: a node that starts pods sends eight and more at a time. Those
requests are handled together, in these steps:

DEL: all pods leave the network in one message to the kernel, the ledger in one transaction, the tables in one each.
ADD: all attachments go into the ledger in one transaction with one ``fdatasync``; then the policies of all pods are
committed at once, and the hostPorts and source guards in one transaction of each table; then the pods are wired one
after the other, and each request is answered as soon as its pod is wired.

The steps and their order are those of a single request (:mod:`podwire.cni.node`), so a kill leaves what it would leave
there: pods in the ledger without a device. A request fails only by itself: whatever is refused is taken back, and the
requests that it concerns are handled one by one, which also finds the error for the answer. Requests that need more
than this (several for one container, a second interface, other plugins for addresses, other verbs) are handled one by
one too.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from podwire.cni import delegation, ports, wiring
from podwire.cni.attachments import Attachments
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.node import FIRST, PodNetwork, is_beside
from podwire.cni.protocol import DONE, CniRequest
from podwire.cni.wiring import Wiring, WiringFacts
from podwire.errors import CniError, KernelError
from podwire.observe.log import Log

Alone = Callable[[CniRequest, str], bytes]
"""Handles one request, and returns its answer."""


class RequestBatches:
    """Handles ADD and DEL of several pods of one node at once; ``node`` returns the current facts of the node."""

    def __init__(self, pods: PodNetwork, attachments: Attachments, node: Callable[[], WiringFacts]) -> None:
        self._pods = pods
        self._attachments = attachments
        self._node = node
        self._log = Log("cni")

    def handle(self, requests: Sequence[tuple[CniRequest, str]], alone: Alone) -> Iterator[tuple[int, bytes]]:
        """Handles requests; yields each one's position and answer as soon as it is handled."""
        verbs = self._verbs([request for request, _ in requests])
        deletions = [position for position, verb in enumerate(verbs) if verb == "DEL"]
        additions = [position for position, verb in enumerate(verbs) if verb == "ADD"]
        together: list[Iterator[tuple[int, bytes]]] = []
        if len(deletions) > 1:
            together.append(self._delete({position: requests[position][0] for position in deletions}))
        if len(additions) > 1:
            together.append(self._add({position: requests[position] for position in additions}))
        handled = set()
        for answers in together:
            for position, answer in answers:
                handled.add(position)
                yield position, answer
        for position, request in enumerate(requests):
            if position not in handled:
                yield position, alone(*request)

    def _verbs(self, requests: Sequence[CniRequest]) -> list[str]:
        """The verb of each request, empty for one that cannot be handled together with others."""
        containers = Counter(request.key.container for request in requests)
        return [
            request.command if containers[request.key.container] == 1 and self._is_plain(request) else ""
            for request in requests
        ]

    def _is_plain(self, request: CniRequest) -> bool:
        """Whether a request is an ADD of a pod's first interface or a DEL, with addresses of podwire."""
        conf = request.conf
        if conf.lends or conf.policy or is_beside(request) or delegation.foreign(conf):
            return False
        if request.command == "ADD":
            return request.key.ifname == FIRST and not self._attachments.of_container(request.key.container)
        return request.command == "DEL"

    def _delete(self, requests: Mapping[int, CniRequest]) -> Iterator[tuple[int, bytes]]:
        """DEL of several pods; yields nothing when a step is refused."""
        held = {at: x for at, request in requests.items() if (x := self._attachments.by_key.get(request.key))}
        for request in requests.values():
            self._pods.lending.forget(request.key)
        try:
            self._attachments.remove(tuple(held.values()))
        except (CniError, KernelError):
            return
        for position, request in requests.items():
            if position in held:
                text = ",".join(held[position].addresses)
                self._log.info("pod deleted", pod=request.pod_name, addresses=text)
            self._pods.count(request, "done")
            yield position, DONE

    def _add(self, requests: Mapping[int, tuple[CniRequest, str]]) -> Iterator[tuple[int, bytes]]:
        """ADD of several pods; yields those that succeed."""
        node = self._node()
        chosen: dict[int, tuple[Attachment, Wiring]] = {}
        for position, (request, netns) in requests.items():
            with contextlib.suppress(CniError, KernelError):
                self._pods.check_addition(request, netns)
                asked = ports.checked(request.conf.runtime_config.port_mappings)
                if not ports.holder_of(asked, (attachment for attachment, _ in chosen.values())):
                    chosen[position] = self._attachments.choose(request, node)
        if not self._hold([attachment for attachment, _ in chosen.values()], node):
            return
        for position, (attachment, planned) in chosen.items():
            request, netns = requests[position]
            if self._wire(request, netns, attachment, planned):
                self._pods.count(request, "done")
                yield position, DONE + self._pods.added(request, attachment, node)

    def _hold(self, attachments: Sequence[Attachment], node: WiringFacts) -> bool:
        """Puts attachments into ledger, policies and tables; otherwise none of them remains."""
        leases, plumber = self._attachments.leases, self._attachments.plumber
        try:
            leases.hold(*attachments, waits=False)
        except CniError:
            for attachment in attachments:
                leases.put_back(attachment.ips)
            return False
        try:
            if (bridge := wiring.bridge_of(attachments, node)) is not None:
                plumber.bridge.hold(bridge)  # Policies read how the bridge forwards.
            self._attachments.gate.attach(*attachments)
            self._attachments.hold_tables_of(attachments)  # The guards come before the devices.
        except KernelError:
            self._undo(attachments)
            return False
        return True

    def _wire(self, request: CniRequest, netns: str, attachment: Attachment, planned: Wiring) -> bool:
        """Wires one pod; otherwise nothing of it remains."""
        try:
            if not self._attachments.plumber.wire(planned, netns):
                self._pods.not_ready[request.key] = planned
            self._attachments.leases.facts.wait()
        except (CniError, KernelError):
            self._undo([attachment])
            return False
        self._attachments.got_ports(attachment)
        return True

    def _undo(self, attachments: Sequence[Attachment]) -> None:
        """Takes attachments back; an error of the kernel comes again when their requests are handled one by one."""
        with contextlib.suppress(KernelError):
            self._attachments.undo(*attachments)
