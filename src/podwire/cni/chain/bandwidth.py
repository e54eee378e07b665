"""The chained plugin ``bandwidth``: limits the traffic to a pod (ingress) and from it (egress).

It runs behind the plugin that wires the pod by a veth pair. Where the runtime's directory has no such program,
podwire's is installed under this name, and the agent answers it. The rates come from the configuration, else from
``runtimeConfig.bandwidth``, which runtimes fill from the annotations ``kubernetes.io/ingress-bandwidth`` and
``kubernetes.io/egress-bandwidth``. ADD keeps in the ledger what it is about to set, so that DEL and GC remove exactly
that, also after the agent was killed. Disciplines and names of devices are those of the reference plugin
(plugins/meta/bandwidth of containernetworking), so that pods of one can be deleted by the other.
"""

from hashlib import sha512
from typing import Annotated, Any, Protocol

import msgspec

from podwire.cni import gojson, spec
from podwire.cni.chain.facts import Facts, previous, stale
from podwire.cni.protocol import CniRequest
from podwire.cni.spec import Document
from podwire.errors import CniError, KernelError
from podwire.state.shaping import PodLimits, token_bucket

TYPE = "bandwidth"
_IFB_LENGTH = 15
_LIMIT_BITS = 8 * 0xFFFFFFFF
_MINIMUM_BITS = 8

Bits = Annotated[int, msgspec.Meta(ge=0)]


class Rates(Document, frozen=True):
    """Rates in bits per second and bursts in bits; 0 is no limit."""

    ingress_rate: Bits = 0
    ingress_burst: Bits = 0
    egress_rate: Bits = 0
    egress_burst: Bits = 0


class BandwidthAddition(Document, frozen=True):
    """What the runtime adds to the configuration."""

    bandwidth: Rates = Rates()


class BandwidthConf(Rates, frozen=True):
    """The configuration of the plugin."""

    runtime_config: BandwidthAddition = BandwidthAddition()


class PodLimiter(Protocol):
    """The limits of pods in the kernel; all methods but :meth:`ticks_per_us` raise KernelError."""

    def ticks_per_us(self) -> float: ...

    def node_end(self, netns: str, name: str) -> str: ...

    def add(self, limits: PodLimits) -> str: ...

    def missing(self, limits: PodLimits) -> str: ...

    def remove(self, limits: PodLimits) -> None: ...

    def remove_ifb(self, name: str) -> None: ...


class BandwidthPlugin:
    """Answers requests of the plugin."""

    def __init__(self, limiter: PodLimiter, facts: Facts) -> None:
        self._limiter = limiter
        self._facts = facts

    def handle(self, request: CniRequest, netns: str) -> bytes:
        """Handles a request and returns the text for its standard output; the namespace was checked.

        Raises: CniError.
        """
        try:
            match request.command:
                case "ADD":
                    return self._add(request, netns)
                case "CHECK":
                    self._check(request, netns)
                case "DEL":
                    self._delete(request)
                case "GC":
                    for name in stale(self._facts, TYPE, request):
                        self.forget(name)
        except KernelError as failure:
            raise CniError(spec.INTERNAL, f"cannot limit the bandwidth of {request.pod_name}", str(failure)) from None
        return b""

    def _add(self, request: CniRequest, netns: str) -> bytes:
        rates, result = _rates(request), previous(request)
        if rates != Rates():
            limits, name = self._limits(request, rates, result, netns), _fact(request)
            self.forget(name)
            self._facts.remember(name, msgspec.json.encode(limits))
            try:
                mac = self._limiter.add(limits)
            except KernelError:
                self._facts.remember(name, b"")
                raise
            if limits.from_pod is not None:
                ifb = spec.CniInterface(name=limits.ifb, mac=mac)
                result = msgspec.structs.replace(result, interfaces=(*result.interfaces, ifb))
        return spec.render_result(result, request.conf.cni_version)

    def _check(self, request: CniRequest, netns: str) -> None:
        rates, result = _rates(request), previous(request)
        if rates != Rates() and (problem := self._limiter.missing(self._limits(request, rates, result, netns))):
            raise CniError(spec.CHECK_FAILED, f"the bandwidth of {request.pod_name} is not limited", problem)

    def _delete(self, request: CniRequest) -> None:
        if self._facts.fact(_fact(request)):
            self.forget(_fact(request))
        else:
            self._limiter.remove_ifb(ifb_name(request.key.network, request.key.container))

    def forget(self, name: str) -> None:
        """Removes the limits of an attachment, by the name of its fact.

        Raises: KernelError, CniError.
        """
        if held := self._facts.fact(name):
            self._limiter.remove(msgspec.json.decode(held, type=PodLimits))
            self._facts.remember(name, b"")

    def _limits(self, request: CniRequest, rates: Rates, result: spec.CniResult, netns: str) -> PodLimits:
        device = self._limiter.node_end(netns, request.key.ifname)
        if not any(interface.name == device and not interface.sandbox for interface in result.interfaces):
            detail = f"the node's end of {request.key.ifname} is {device or 'no veth of this node'}"
            raise CniError(spec.INVALID_CONFIG, "prevResult does not name the veth of the pod on the node", detail)
        ticks = self._limiter.ticks_per_us()
        to_pod, from_pod = (
            token_bucket(rate, burst, ticks) if rate else None
            for rate, burst in ((rates.ingress_rate, rates.ingress_burst), (rates.egress_rate, rates.egress_burst))
        )
        ifb = ifb_name(request.key.network, request.key.container)
        return PodLimits(device, ifb, f"podwire bandwidth {request.key}", to_pod, from_pod)


def ifb_name(network: str, container: str) -> str:
    """The name of the ifb device of a container in a network."""
    return f"bwp{sha512((network + container).encode()).hexdigest()}"[:_IFB_LENGTH]


def _fact(request: CniRequest) -> str:
    return f"{TYPE} {request.key}"


def _rates(request: CniRequest) -> Rates:
    """The rates: those of the runtime apply when the configuration has none."""
    document: dict[str, Any] = request.document
    try:
        conf = gojson.convert(document, BandwidthConf)
    except msgspec.ValidationError as problem:
        raise CniError(spec.DECODING_FAILURE, "the configuration of bandwidth is not valid", str(problem)) from problem
    fields = Rates.__struct_encode_fields__
    spelled = {name.casefold() for name, value in document.items() if value is not None}
    own = Rates(**{field: getattr(conf, field) for field in Rates.__struct_fields__})
    is_own = any(field.casefold() in spelled for field in fields)
    rates, path = (own, "") if is_own else (conf.runtime_config.bandwidth, "runtimeConfig.bandwidth.")
    for direction in ("ingress", "egress"):
        rate, burst = getattr(rates, f"{direction}_rate"), getattr(rates, f"{direction}_burst")
        _check(f"{path}{direction}", rate, burst)
    return rates


def _check(path: str, rate: int, burst: int) -> None:
    if bool(rate) != bool(burst):
        absent, present = ("Burst", "Rate") if rate else ("Rate", "Burst")
        detail = f"expected both {path}Rate and {path}Burst, or neither"
        raise CniError(spec.INVALID_CONFIG, f"{path}{present} is set and {path}{absent} is not", detail)
    if burst >= _LIMIT_BITS:
        raise CniError(spec.INVALID_CONFIG, f"{path}Burst is {burst} bits", f"expected less than {_LIMIT_BITS}")
    if 0 < rate < _MINIMUM_BITS or 0 < burst < _MINIMUM_BITS:
        raise CniError(spec.INVALID_CONFIG, f"{path}Rate or {path}Burst is below {_MINIMUM_BITS}", "expected bits")
