"""podwire-cni behind another plugin (``"policy": true``): a pod's policies are in force before its containers start.

This plugin wires no pods. ADD reads the pod's addresses and device from ``prevResult``, puts the pod's policies into
the kernel and returns ``prevResult`` unchanged; the runtime starts no container before that. If the agent cannot put
the policies in force now, the answer is code 11, and the runtime tries again. DEL and GC forget pods, CHECK compares.

ADD writes the attachment to disk before it answers: an agent that is started again knows the pods whose addresses the
API does not have yet. An address belongs to the pod that was added with it last, since the plugin in front assigns the
addresses.
"""

from collections.abc import Awaitable, Callable, Iterable

import msgspec

from podwire.cni import spec
from podwire.cni.gate import PolicyGate
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.metrics import request_samples
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.errors import CniError, KernelError
from podwire.observe.health import Metric
from podwire.observe.log import Log

FindDevice = Callable[[tuple[str, ...], tuple[str, ...]], str]
"""Finds a pod's own device on the node from the devices that earlier plugins named and its addresses; empty: none."""


class PolicyChain:
    """Answers CNI requests of a plugin that only enforces policies."""

    def __init__(self, ledger: Ledger, gate: PolicyGate, find_device: FindDevice, problem: Callable[[], str]) -> None:
        """``problem`` says why policies are not in force; empty: they are."""
        self._ledger = ledger
        self._gate = gate
        self._find_device = find_device
        self._problem = problem
        self._log = Log("cni")
        self._counts: dict[tuple[str, str], int] = {}
        self.held: dict[AttachmentKey, Attachment] = ledger.attachments()

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Returns what to await before a request is handled; None: the request can be handled at once.

        Raises: CniError.
        """
        return self._gate.before(request)

    def handle(self, request: CniRequest, _netns: str) -> bytes:
        """Handles a request and returns the text for its standard output.

        Raises: CniError.
        """
        verbs = {"ADD": self._add, "DEL": self._delete, "CHECK": self._check, "STATUS": self._status, "GC": self._gc}
        outcome = "failed"
        try:
            if request.command == "VERSION":
                answer = spec.render_versions(request.conf.cni_version)
            else:
                answer = verbs[request.command](request)
            outcome = "done"
        finally:
            key = (request.command, outcome)
            self._counts[key] = self._counts.get(key, 0) + 1
        return answer

    def forget_lost(self, present: Iterable[str]) -> None:
        """Forgets the pods whose device is not in ``present``; to be called at the start."""
        links = frozenset(present)
        self._drop([attachment for attachment in self.held.values() if attachment.host_link not in links])

    def _add(self, request: CniRequest) -> bytes:
        if not request.conf.policy:
            detail = 'its parts lack cni; behind another plugin, set "policy": true in the configuration of podwire-cni'
            raise CniError(spec.INVALID_CONFIG, "the podwire agent of this node does not make pods' networks", detail)
        result = _previous(request)
        attachment = self._attachment(request, result)
        self._drop([held for held in self.held.values() if self._replaced(held, attachment)])
        self._ledger.hold(attachment)
        self.held[attachment.key] = attachment
        try:
            self._gate.attach(attachment)
        except KernelError as failure:
            self._drop([attachment])
            raise CniError(
                spec.TRY_LATER, f"policies of {request.pod_name} are not in force", str(failure)
            ) from failure
        self._log.info(
            "policies in force",
            pod=request.pod_name,
            addresses=",".join(attachment.addresses),
            link=attachment.host_link,
        )
        return msgspec.json.encode(request.conf.prev_result)

    def _attachment(self, request: CniRequest, result: spec.CniResult) -> Attachment:
        inside = {number for number, link in enumerate(result.interfaces) if link.sandbox}
        ips = [ip for ip in result.ips if ip.interface is None or ip.interface in inside]
        addresses = tuple(str(ip) for ip in spec.addresses_of(spec.CniResult(ips=tuple(ips))))
        if not addresses:
            raise CniError(spec.INVALID_CONFIG, f"prevResult has no address for {request.pod_name}")
        named = tuple(link.name for link in result.interfaces if not link.sandbox)
        link = self._find_device(named, addresses)
        if not link:
            detail = f"prevResult names {', '.join(named) or 'none'}; pods need a veth on the node"
            raise CniError(spec.TRY_LATER, f"no device of {request.pod_name} is found on the node", detail)
        mac = next((interface.mac for interface in result.interfaces if interface.sandbox), "")
        return Attachment(
            key=request.key,
            addresses=addresses,
            host_link=link,
            mac=mac,
            netns=request.netns,
            namespace=request.namespace,
            pod=request.pod,
            uid=request.uid,
        )

    @staticmethod
    def _replaced(held: Attachment, attachment: Attachment) -> bool:
        same = held.key == attachment.key or held.host_link == attachment.host_link
        return same or not frozenset(held.addresses).isdisjoint(attachment.addresses)

    def _delete(self, request: CniRequest) -> bytes:
        self._drop([attachment for key, attachment in self.held.items() if key == request.key])
        return b""

    def _check(self, request: CniRequest) -> bytes:
        attachment = self.held.get(request.key)
        if attachment is None:
            raise CniError(spec.UNKNOWN_CONTAINER, f"{request.key} is not attached: no ADD of that key was answered")
        addresses = {str(ip) for ip in spec.addresses_of(_previous(request))}
        if lacking := [address for address in attachment.addresses if address not in addresses]:
            raise CniError(spec.CHECK_FAILED, f"prevResult lacks {', '.join(lacking)} of {request.key}")
        if self._find_device((attachment.host_link,), attachment.addresses) != attachment.host_link:
            raise CniError(spec.CHECK_FAILED, f"{attachment.host_link} is not the device of {request.key} any more")
        if problem := self._problem():
            raise CniError(spec.CHECK_FAILED, problem)
        return b""

    def _status(self, _request: CniRequest) -> bytes:
        if problem := self._problem():
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, problem)
        return b""

    def _gc(self, request: CniRequest) -> bytes:
        valid_attachments = request.conf.attachments_in_use
        if valid_attachments is not None and not request.conf.disable_gc:
            network = request.conf.name
            self._drop(
                [
                    a
                    for k, a in self.held.items()
                    if k.network == network and (k.container, k.ifname) not in valid_attachments
                ]
            )
        return b""

    def _drop(self, attachments: list[Attachment]) -> None:
        if not attachments:
            return
        self._ledger.release(attachments, 0.0, 1.0)
        for attachment in attachments:
            del self.held[attachment.key]
            self._gate.detach(attachment)

    def samples(self) -> list[Metric]:
        """The metrics."""
        return [*request_samples(self._counts)]


def _previous(request: CniRequest) -> spec.CniResult:
    if request.conf.prev_result is None:
        detail = "put podwire-cni last in the list of plugins, after the plugin that wires pods"
        raise CniError(spec.INVALID_CONFIG, "podwire-cni with policy: true got no prevResult", detail)
    return spec.parse_result(request.conf.prev_result, request.conf.cni_version)
