"""The pages of a node's proxy: the desired state, the versions in force and the metrics."""

from podwire.cluster.inforce import Versions
from podwire.errors import KernelError
from podwire.kube.informer import Informer
from podwire.model.service import EndpointSlice, Service
from podwire.observe.health import Metric, Sample
from podwire.observe.log import Log
from podwire.proxy.dataplane import OWNER, Counts
from podwire.proxy.health import Pulse
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.runner import ServiceProxy
from podwire.proxy.switch import Switch
from podwire.state.network import NetworkState
from podwire.state.share import Share


class ProxyOverview:
    """Reads the running proxy."""

    def __init__(self, proxy: ServiceProxy, plane: Switch, metrics: ProxyMetrics, pulse: Pulse) -> None:
        self._proxy = proxy
        self._plane = plane
        self._metrics = metrics
        self._pulse = pulse
        self._log = Log("proxy")

    def problem(self) -> str:
        """Why Services do not work on this node; empty: they work."""
        return self._proxy.problem

    def in_force(self, services: Informer[Service], slices: Informer[EndpointSlice]) -> Versions | None:
        """The versions of Services and their slices; None while the kernel does not hold them."""
        if not self._proxy.programmed.is_set():
            return None
        return {services.resource.plural: services.versions, slices.resource.plural: slices.versions}

    def share(self) -> Share:
        """The desired state for Services, as last programmed."""
        desired = self._plane.desired()
        objects = any(isinstance(value, NetworkState) for value in desired)
        return Share(
            part="proxy",
            protocol=OWNER.route_protocol if objects else 0,
            alias=OWNER.alias_prefix if objects else "",
            desired=desired,
            note="" if desired else self.problem(),
        )

    def samples(self) -> list[Metric]:
        """The metrics."""
        services = self._proxy.services
        ports = [port for ports_of_service in services.values() for port in ports_of_service]
        modes = {"mode": self._plane.name, "wanted": self._plane.configured_mode}
        return [
            Sample("podwire_proxy_mode", "The mode in force and the one that was asked for.", 1, modes),
            *self._metrics.samples(ports, self._pulse.answered, self._counts()),
            Sample("podwire_proxy_services", "Services that are programmed.", len(services)),
            Sample("podwire_proxy_ports", "Ports of Services that are programmed.", len(ports)),
            Sample(
                "podwire_proxy_conflicts", "Services whose frontend another one holds.", len(self._plane.conflicts())
            ),
        ]

    def _counts(self) -> Counts:
        try:
            return self._plane.counts()
        except KernelError as problem:
            self._log.warning("cannot read the rule counters", problem=problem)
            return Counts()
