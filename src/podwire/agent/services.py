"""The Service proxy of the agent: its informers and data plane, and what it adds to health and metrics."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from ipaddress import ip_network
from pathlib import Path

import msgspec

from podwire.agent.config import AgentConfig
from podwire.cluster.announcer import Announcer
from podwire.cluster.inforce import Versions
from podwire.cluster.names import NODE_PROXY
from podwire.errors import KernelError
from podwire.http.message import METRICS_TEXT, TEXT, Response
from podwire.http.routes import Routes, dispatch
from podwire.kernel.netlink import Netlink
from podwire.kernel.network import read_paths
from podwire.kernel.process import adjust_oom_score
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder, Severity, reference
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, SERVICECIDRS, SERVICES, Json
from podwire.model.node import Node
from podwire.observe.health import Health, Metric, Sample
from podwire.observe.log import Log
from podwire.proxy import leftovers, sysctls
from podwire.proxy.dataplane import OWNER, Counts, addresses_of_node
from podwire.proxy.flows import UDP, UDP_AND_TCP, flow_cleaner
from podwire.proxy.health import Pulse
from podwire.proxy.healthchecks import HealthChecks, MovableServer, listener
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.modes import ServiceModes
from podwire.proxy.nodeports import within
from podwire.proxy.report import ProxyReport
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import NodeFacts, ResolvedPort
from podwire.proxy.settings import ProxySettings, parse_settings
from podwire.proxy.switch import Switch
from podwire.proxy.trim import trim_service, trim_slice
from podwire.runtime import memory
from podwire.state.network import NetworkState
from podwire.state.share import Share

_CONFIGZ = "kubeproxy.config.k8s.io"
_LABELS = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"


class ServicePart:
    """Programs Services on one node."""

    def __init__(self, config: AgentConfig, client: Client, nodes: Informer[Node], events: EventRecorder) -> None:
        settings = parse_settings(config.proxy)
        facts = settings.facts(config.node_name, config.cluster_cidrs, config.service_cidrs)
        self._config = config
        self._cidrs: Informer[Json] | None = None if config.service_cidrs else Informer(client, SERVICECIDRS)
        self._health = Health()
        self._loop = asyncio.get_running_loop()
        self._loaded = asyncio.Event()
        self._services = Informer(client, SERVICES, label_selector=_LABELS.partition(",")[0])
        self._slices = Informer(client, ENDPOINTSLICES, label_selector=_LABELS)
        self._services.trim, self._slices.trim = trim_service, trim_slice
        self._plane = Switch(ServiceModes(), settings.mode, facts, self._told, settings.fallback)
        clock = self._clock = client.clock
        self._nodes, self._events, self._settings = nodes, events, settings
        self._log = Log("proxy")
        self._pulse = Pulse(clock)
        self._metrics = ProxyMetrics(settings.mode, clock)
        self._healthz = MovableServer(listener(), settings.healthz, dispatch(self._health_routes()), clock)
        self._metricsz = MovableServer(listener(), settings.metrics, dispatch(self._metrics_routes()), clock)
        self._checks = HealthChecks(self._pulse, listener(), self._node_port_addresses, clock, self._unchecked)
        self._proxy = ServiceProxy(
            Sources(services=self._services, slices=self._slices, nodes=nodes),
            self._plane,
            facts,
            clock,
            self._stale_flows,
            ProxyReport(self._pulse, self._metrics, self._checks, clock, self._failed),
        )

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The wanted mode that is not available, and why; None when the wanted mode is in force."""
        return self._plane.problem

    @property
    def mode(self) -> str:
        """The mode in force."""
        return self._plane.name

    def configure(self, settings: ProxySettings) -> None:
        """Applies other settings while the proxy runs."""
        before, self._settings = self._settings, settings
        if settings == before:
            return
        if (settings.conntrack, settings.oom_score_adj) != (before.conntrack, before.oom_score_adj):
            self._tune()
        self._healthz.move(settings.healthz)
        self._metricsz.move(settings.metrics)
        self._plane.wanted = settings.mode
        self._proxy.configure(self._facts())

    def _facts(self) -> NodeFacts:
        config = self._config
        cidrs = config.service_cidrs or service_cidrs(self._cidrs.objects.values() if self._cidrs else ())
        return self._settings.facts(config.node_name, config.cluster_cidrs, cidrs)

    def _stale_flows(
        self, before: tuple[ResolvedPort, ...], after: tuple[ResolvedPort, ...], *, gap: bool = False
    ) -> Callable[[], Mapping[str, int]] | None:
        protocols = UDP_AND_TCP if self._settings.reset_connections else UDP
        return flow_cleaner(self._node_port_addresses, None, protocols, mode=self.mode)(before, after, gap=gap)

    def _told(self) -> None:
        self._loop.call_soon_threadsafe(self._loaded.set)

    def tasks(
        self, health: Health, announcer: Announcer, note: Callable[[], None], ready: Callable[[], Awaitable[object]]
    ) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run, by name, once ``ready`` returns; checks and metrics are added to ``health``.

        ``note`` is called whenever the mode in force may have changed.
        """
        self._health = health
        health.ready["proxy"] = self._problem
        health.metrics["proxy"] = self._samples

        self._tune()

        async def tell() -> None:
            later = False
            while True:
                await self._loaded.wait()
                self._loaded.clear()
                self._metrics.mode = self.mode
                note()
                memory.settle(later=later)
                later = True
                await announcer.insist({NODE_PROXY: self.mode})

        async def run() -> None:
            await ready()
            await self._proxy.run()

        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "services": self._services.run,
            "endpointslices": self._slices.run,
            "proxy": run,
            "proxy announcement": tell,
            "health check node ports": self._checks.run,
            "proxy leftovers": self._take_over,
            "proxy health": self._healthz.run,
            "proxy metrics": self._metricsz.run,
        }
        if self._cidrs is not None:
            self._cidrs.subscribe(lambda _key, _old, _new: self._proxy.configure(self._facts()))
            tasks["service CIDRs"] = self._cidrs.run
        return tasks

    def in_force(self) -> Versions | None:
        """The versions of Services and their slices; None while the kernel does not hold them."""
        if not self._proxy.programmed.is_set():
            return None
        return {informer.resource.plural: informer.versions for informer in (self._services, self._slices)}

    def _tune(self) -> None:
        for problem in sysctls.apply(sysctls.plan(self._settings.conntrack, os.cpu_count() or 1)):
            self._log.info("cannot apply the connection tracking settings", problem=problem)
        try:
            adjust_oom_score(self._settings.oom_score_adj)
        except KernelError as problem:
            self._log.info("cannot lower the OOM score of this process", problem=problem)

    async def _take_over(self) -> None:
        """When our rules are in force, annotates the Node with the mode and removes kube-proxy's tables."""
        await self._proxy.loaded.wait()
        self._say("Normal", "Starting", f"Services are programmed, mode {self.mode}")
        try:
            if await asyncio.to_thread(leftovers.clear_kube_proxy):
                self._log.info("removed kube-proxy's nftables tables")
        except KernelError as problem:
            self._log.warning("cannot remove kube-proxy's nftables tables", problem=problem)

    def _node_port_addresses(self) -> tuple[str, ...]:
        return node_port_addresses(self._proxy.facts)

    def _health_routes(self) -> Routes:
        """The routes of kube-proxy's health port."""
        return {
            "/healthz": lambda _: self._pulse.healthz(self._nodes.objects.get(self._proxy.facts.name)),
            "/livez": lambda _: self._pulse.livez(),
        }

    def _metrics_routes(self) -> Routes:
        """The routes of kube-proxy's metrics port, so that scrapers and tools find them there."""
        return {
            "/metrics": lambda _: Response(200, self._health.render(), METRICS_TEXT),
            "/healthz": lambda _: Response(200, b"ok", TEXT),
            "/proxyMode": lambda _: Response(200, self.mode.encode(), TEXT),
            "/configz": lambda _: Response(200, msgspec.json.encode({_CONFIGZ: self._settings})),
        }

    def _failed(self, problem: str) -> None:
        self._say("Warning", "ServicesNotProgrammed", problem)

    def _say(self, severity: Severity, reason: str, text: str) -> None:
        """Records an Event of the Node, if the Node is known."""
        node = self._nodes.objects.get(self._proxy.facts.name)
        if node is not None:
            self._events.event(reference("v1", "Node", node.metadata), severity, reason, text)

    def _unchecked(self, service: str, problem: str) -> None:
        known = self._services.objects.get(service)
        if known is not None:
            subject = reference("v1", "Service", known.metadata)
            self._events.event(subject, "Warning", "FailedToStartServiceHealthcheck", problem)

    def share(self) -> Share:
        """What the kernel should hold for Services, as last programmed."""
        desired = self._plane.desired()
        objects = any(isinstance(each, NetworkState) for each in desired)
        return Share(
            part="proxy",
            protocol=OWNER.route_protocol if objects else 0,
            alias=OWNER.alias_prefix if objects else "",
            desired=desired,
            note="" if desired else self._problem(),
        )

    def _problem(self) -> str:
        return self._proxy.problem

    def _counts(self) -> Counts:
        try:
            return self._plane.counts()
        except KernelError as problem:
            self._log.warning("cannot read the rule counters", problem=problem)
            return Counts()

    def _samples(self) -> list[Metric]:
        ports = self._proxy.services
        frontends = sum(len(some) for some in ports.values())
        conflicts = len(self._plane.conflicts())
        every = (port for some in ports.values() for port in some)
        modes = {"mode": self.mode, "wanted": self._plane.wanted}
        return [
            Sample("podwire_proxy_mode", "The mode in force and the one that was asked for.", 1, modes),
            *self._metrics.samples(every, self._pulse.answered, self._counts()),
            Sample("podwire_proxy_services", "Services that are programmed.", len(ports)),
            Sample("podwire_proxy_ports", "Ports of Services that are programmed.", frontends),
            Sample("podwire_proxy_conflicts", "Services whose frontend another one holds.", conflicts),
        ]


def service_cidrs(objects: Iterable[Json]) -> tuple[str, ...]:
    """The ranges of ServiceCIDR objects, each once; malformed ones are left out."""
    texts = (text for each in objects for text in each.get("spec", {}).get("cidrs", ()))
    found: set[str] = set()
    for text in texts:
        try:
            found.add(str(ip_network(text)))
        except ValueError:
            continue
    return tuple(sorted(found))


def node_port_addresses(facts: NodeFacts, netns: Path | str | None = None) -> tuple[str, ...]:
    """The addresses on which node ports answer now in a network namespace (None: that of this process).

    Raises: KernelError.
    """
    if not facts.node_port_ranges:
        return facts.addresses
    with Netlink(netns) as netlink:
        return within(addresses_of_node(read_paths(netlink)), facts.node_port_ranges)
