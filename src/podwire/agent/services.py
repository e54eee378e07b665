"""Constructs the part ``proxy`` of the agent."""

from podwire.agent.shared import Shared
from podwire.cluster.degraded import CLIENTS_HIDDEN, CONNECTION_TABLE_FULL, FEATURE_MISSING
from podwire.cluster.names import NODE_PROXY
from podwire.dataplane.announcement import LoadAnnouncer
from podwire.errors import Unsupported
from podwire.http.routes import dispatch
from podwire.kube.informer import Informer
from podwire.kube.resources import SERVICECIDRS
from podwire.model.service import ServiceCidr
from podwire.proxy.configurator import ConfiguredParts, ProxyConfiguration, ProxyConfigurator, configured_cleaner
from podwire.proxy.events import ProxyEvents
from podwire.proxy.health import Pulse
from podwire.proxy.healthchecks import HealthChecks, MovableServer, listener
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.modes import ServiceModes, hidden_clients, unavailable
from podwire.proxy.nodeaddresses import node_port_addresses
from podwire.proxy.occupancy import OccupancyWatch
from podwire.proxy.overview import ProxyOverview
from podwire.proxy.pages import health_pages, metrics_pages
from podwire.proxy.report import ProxyReport
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicecidrs import ServiceCidrs
from podwire.proxy.settings import ProxySettings, parse_settings
from podwire.proxy.switch import Switch
from podwire.proxy.takeover import replace_kube_proxy
from podwire.proxy.tuning import Tuning
from podwire.routing.settings import RoutingSettings
from podwire.runtime import memory

_LARGE_LOAD = 500
"""Services and EndpointSlices; a load of fewer leaves little to collect, and a collection takes 20 ms (``memory``)."""


def add(shared: Shared) -> None:
    """Adds the Service proxy; without any available mode, the agent reports why and programs no Services."""
    settings = parse_settings(shared.config.proxy)
    try:
        ServicePart(shared, settings).connect()
    except Unsupported as missing:
        problem = f"{unavailable(settings.mode, missing, shared.features.lacks)}; Services are not programmed"
        shared.degraded.report("proxy", FEATURE_MISSING, problem)
        shared.health.ready["proxy"] = lambda: problem


def follow_cidrs(shared: Shared) -> Informer[ServiceCidr] | None:
    """The informer of ServiceCIDRs; None when the configuration names the ranges."""
    if shared.config.service_cidrs:
        return None
    informer: Informer[ServiceCidr] = Informer(shared.client, SERVICECIDRS, decode_as=ServiceCidr)
    shared.events.follow_rejected(informer)
    return informer


def _further(routing: RoutingSettings) -> tuple[str, ...]:
    """The ranges of further pod networks: their pods are clients inside of the cluster."""
    return tuple(map(str, routing.pod_networks.ranges))


class ServicePart:
    """The parts of the proxy of one node."""

    def __init__(self, shared: Shared, settings: ProxySettings) -> None:
        """Raises: Unsupported when no mode is available."""
        config, clock, nodes = shared.config, shared.clock, shared.nodes
        self.shared = shared
        self.services, self.slices = shared.services()
        self.cidrs = follow_cidrs(shared)
        ranges = ServiceCidrs(config.service_cidrs, lambda: self.cidrs.objects.values() if self.cidrs else ())
        self.configuration = ProxyConfiguration(settings, config.node_name, config.cluster_cidrs, ranges)
        self.configuration.further_cidrs = _further(config.routing_settings)
        facts = self.configuration.facts
        self.announcer = LoadAnnouncer(self.announce)
        self.plane = Switch(ServiceModes(), settings.mode, facts, self.announcer.loaded, settings.fallback)
        self.events = ProxyEvents(shared.events, config.node_name, nodes, self.services)
        self.services.subscribe(self.events.service_changed)
        self.slices.subscribe(self.events.slice_changed)
        self.pulse = Pulse(clock)
        self.metrics = ProxyMetrics(settings.mode, clock)
        self.checks = HealthChecks(self.pulse, listener(), self.node_addresses, clock, self.events.health_check_refused)
        self.proxy = ServiceProxy(
            Sources(services=self.services, slices=self.slices, nodes=nodes),
            self.plane,
            facts,
            clock,
            configured_cleaner(self.configuration, self.node_addresses, lambda: self.plane.name),
            ProxyReport(self.pulse, self.metrics, self.checks, clock, self.events.not_programmed),
        )
        self.configurator = self.make_configurator()

    def make_configurator(self) -> ProxyConfigurator:
        """Constructs what follows the settings: tuning, and the servers of the health and metrics ports."""
        shared, settings = self.shared, self.configuration.settings
        health = health_pages(self.pulse, shared.own_node)
        metrics = metrics_pages(shared.health.render, lambda: self.plane.name, lambda: self.configuration.settings)
        parts = ConfiguredParts(
            proxy=self.proxy,
            plane=self.plane,
            health_server=MovableServer(listener(), settings.healthz, dispatch(health), shared.clock),
            metrics_server=MovableServer(listener(), settings.metrics, dispatch(metrics), shared.clock),
            tuning=Tuning(),
        )
        parts.tuning.apply(settings)
        self.shared.tasks |= {"proxy health": parts.health_server.run, "proxy metrics": parts.metrics_server.run}
        return ProxyConfigurator(self.configuration, parts)

    def node_addresses(self) -> tuple[str, ...]:
        """The addresses on which node ports answer now."""
        return node_port_addresses(self.proxy.facts)

    async def announce(self, first: bool) -> None:
        """Reports the mode in force after a load."""
        mode, problem = self.plane.name, self.plane.problem
        self.metrics.mode = mode
        missing = unavailable(*problem, self.shared.features.lacks) if problem is not None else ""
        self.shared.degraded.report("proxy", FEATURE_MISSING, f"{missing}; {mode} is used" if missing else "")
        self.report_hidden_clients()
        if len(self.services.objects) + len(self.slices.objects) >= _LARGE_LOAD:
            memory.settle(later=not first)
        await self.shared.announcer.insist({NODE_PROXY: mode})

    def report_hidden_clients(self) -> None:
        """Reports that policies cannot see the clients of Services, while the mode in force hides them."""
        policies = sum(len(informer.objects) for informer in self.shared.policies)
        self.shared.degraded.report("policies of clients", CLIENTS_HIDDEN, hidden_clients(self.plane.name, policies))

    def connect(self) -> None:
        """Adds the tasks, checks, metrics and pages of the proxy to the agent."""
        shared, proxy = self.shared, self.proxy
        overview = ProxyOverview(proxy, self.plane, self.metrics, self.pulse)
        table = OccupancyWatch(
            shared.clock, lambda text: shared.degraded.report("conntrack", CONNECTION_TABLE_FULL, text)
        )
        shared.health.ready["proxy"] = overview.problem
        shared.health.metrics |= {"proxy": overview.samples, "conntrack": table.samples}
        shared.state_page.parts["proxy"] = lambda: [overview.share()]
        shared.in_force.parts["proxy"] = lambda: overview.in_force(self.services, self.slices)
        shared.on_settings.append(
            lambda settings: self.configurator.configure(settings.proxy, _further(settings.routing))
        )
        shared.tasks |= {
            "proxy": self.run,
            "proxy announcement": self.announcer.run,
            "health check node ports": self.checks.run,
            "proxy leftovers": lambda: replace_kube_proxy(proxy.loaded, lambda: self.events.started(self.plane.name)),
            "conntrack": table.run,
        }
        for informer in shared.policies:
            informer.subscribe(lambda _key, _old, _new: self.report_hidden_clients())
        if self.cidrs is not None:
            self.cidrs.subscribe(lambda _key, _old, _new: self.configurator.facts_changed())
            shared.tasks["service CIDRs"] = self.cidrs.run

    async def run(self) -> None:
        """Programs Services once the settings of the cluster are known."""
        await self.shared.until_settings_are_known()
        await self.proxy.run()
