"""podwire-cni behind another plugin (``"policy": true``): a pod's policies are in force before its containers start.

It wires nothing. ADD takes the pod's addresses and device out of ``prevResult``, has the pod's policies put into the
kernel and answers ``prevResult`` as it came; the runtime starts no container before. When the agent cannot do it now
the answer is code 11, and the runtime tries again. DEL and GC forget, CHECK compares.

What ADD has answered is kept on disk, written before it answers: an agent that is started again knows the pods whose
addresses the API does not have yet. An address belongs to the pod that was added with it last, since the plugin in
front is who hands addresses out.
"""

from collections.abc import Awaitable, Callable, Iterable

import msgspec

from podwire.cni import spec
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.node import PolicyGate
from podwire.cni.protocol import Key, Request
from podwire.errors import CniError, KernelError
from podwire.observe.health import Metric, Sample
from podwire.observe.log import Log

Find = Callable[[tuple[str, ...], tuple[str, ...]], str]
"""The node's device of a pod alone, given the devices that plugins in front named, and its addresses; empty: none."""


class PolicyChain:
    """Answers CNI requests for policies alone."""

    def __init__(self, ledger: Ledger, guard: PolicyGate, find: Find, problem: Callable[[], str]) -> None:
        """``problem`` says why policies are not in force; empty: they are."""
        self._ledger = ledger
        self._guard = guard
        self._find = find
        self._problem = problem
        self._log = Log("cni")
        self._counts: dict[tuple[str, str], int] = {}
        self.held: dict[Key, Attachment] = ledger.attachments()

    def before(self, request: Request) -> Awaitable[None] | None:
        """What a request has to wait for; None: nothing.

        Raises: CniError.
        """
        return self._guard.before(request)

    def handle(self, request: Request, _netns: str) -> bytes:
        """The standard output of a request.

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
        """Forgets the pods whose device is not among those that are there; to be called at the start."""
        there = frozenset(present)
        self._drop([one for one in self.held.values() if one.host_link not in there])

    def _add(self, request: Request) -> bytes:
        if not request.conf.policy:
            detail = 'its parts lack cni; behind another plugin the configuration says "policy": true'
            raise CniError(spec.INVALID_CONFIG, "the podwire agent of this node does not make pods' networks", detail)
        result = _previous(request)
        one = self._attachment(request, result)
        self._drop([other for other in self.held.values() if self._replaced(other, one)])
        self._ledger.hold(one)
        self.held[one.key] = one
        try:
            self._guard.attach(one)
        except KernelError as failure:
            self._drop([one])
            raise CniError(
                spec.TRY_LATER, f"policies of {request.pod_name} are not in force", str(failure)
            ) from failure
        self._log.info("policies in force", pod=request.pod_name, addresses=",".join(one.addresses), link=one.host_link)
        return msgspec.json.encode(request.conf.prev_result)

    def _attachment(self, request: Request, result: spec.Result) -> Attachment:
        inside = {number for number, link in enumerate(result.interfaces) if link.sandbox}
        ips = [ip for ip in result.ips if ip.interface is None or ip.interface in inside]
        addresses = tuple(str(ip) for ip in spec.addresses_of(spec.Result(ips=tuple(ips))))
        if not addresses:
            raise CniError(spec.INVALID_CONFIG, f"prevResult has no address for {request.pod_name}")
        named = tuple(link.name for link in result.interfaces if not link.sandbox)
        link = self._find(named, addresses)
        if not link:
            detail = f"prevResult names {', '.join(named) or 'none'}; pods need a veth on the node"
            raise CniError(spec.TRY_LATER, f"no device of {request.pod_name} is found on the node", detail)
        mac = next((each.mac for each in result.interfaces if each.sandbox), "")
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
    def _replaced(other: Attachment, one: Attachment) -> bool:
        same = other.key == one.key or other.host_link == one.host_link
        return same or not frozenset(other.addresses).isdisjoint(one.addresses)

    def _delete(self, request: Request) -> bytes:
        self._drop([one for key, one in self.held.items() if key == request.key])
        return b""

    def _check(self, request: Request) -> bytes:
        one = self.held.get(request.key)
        if one is None:
            raise CniError(spec.UNKNOWN_CONTAINER, f"{request.key} is not attached: policies have no pod of that key")
        addresses = {str(ip) for ip in spec.addresses_of(_previous(request))}
        if lost := [address for address in one.addresses if address not in addresses]:
            raise CniError(spec.CHECK_FAILED, f"prevResult lacks {', '.join(lost)} of {request.key}")
        if self._find((one.host_link,), one.addresses) != one.host_link:
            raise CniError(spec.CHECK_FAILED, f"{one.host_link} is not the device of {request.key} any more")
        if problem := self._problem():
            raise CniError(spec.CHECK_FAILED, problem)
        return b""

    def _status(self, _request: Request) -> bytes:
        if problem := self._problem():
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, problem)
        return b""

    def _gc(self, request: Request) -> bytes:
        kept = request.conf.kept
        if kept is not None and not request.conf.disable_gc:
            network = request.conf.name
            self._drop(
                [o for k, o in self.held.items() if k.network == network and (k.container, k.ifname) not in kept]
            )
        return b""

    def _drop(self, ones: list[Attachment]) -> None:
        if not ones:
            return
        self._ledger.release(ones, 0.0, 1.0)
        for one in ones:
            del self.held[one.key]
            self._guard.detach(one)

    def samples(self) -> list[Metric]:
        """The metrics."""
        return [
            Sample(
                "podwire_cni_requests_total",
                "CNI requests.",
                count,
                {"command": command, "outcome": outcome},
                kind="counter",
            )
            for (command, outcome), count in sorted(self._counts.items())
        ]


def _previous(request: Request) -> spec.Result:
    if request.conf.prev_result is None:
        detail = "it is placed behind the plugin that wires pods, which ends its configuration's list of plugins"
        raise CniError(spec.INVALID_CONFIG, "podwire-cni with policy: true got no prevResult", detail)
    return spec.parse_result(request.conf.prev_result, request.conf.cni_version)
