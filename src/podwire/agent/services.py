"""The Service proxy as a part of the agent: its collections, its data plane, its place in health and metrics."""

from collections.abc import Awaitable, Callable
from functools import partial

from podwire.agent.announce import Announcer
from podwire.agent.config import AgentConfig
from podwire.kernel.netlink import Netlink
from podwire.kernel.network import read_paths
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder, reference
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, SERVICES
from podwire.model.node import Node
from podwire.observe.health import Health, Metric, Sample
from podwire.observe.reply import response
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.health import Pulse
from podwire.proxy.healthchecks import HealthChecks, listener, serve_page
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.nodeports import within
from podwire.proxy.registry import open_dataplane
from podwire.proxy.report import Report
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import NodeFacts
from podwire.proxy.settings import parse_settings
from podwire.state.nft import Table
from podwire.state.share import Share

ANNOTATION = "podwire.io/proxy"
_LABELS = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"


class ServicePart:
    """Programs Services on one node."""

    def __init__(self, config: AgentConfig, client: Client, nodes: Informer[Node], events: EventRecorder) -> None:
        settings = parse_settings(config.proxy)
        facts = NodeFacts(
            name=config.node_name,
            node_port_ranges=settings.node_port_ranges,
            external_ips=settings.allow_external_ips,
            pod_cidrs=() if settings.detect_local_mode == "NodeCIDR" else config.cluster_cidrs,
            pod_cidrs_of_node=settings.detect_local_mode == "NodeCIDR",
            pod_interface=settings.pod_interface,
            service_cidrs=config.service_cidrs,
            masquerade_bit=settings.masquerade_bit,
            masquerade_all=settings.masquerade_all,
        )
        self.mode = settings.mode
        self._services = Informer(client, SERVICES, label_selector=_LABELS.partition(",")[0])
        self._slices = Informer(client, ENDPOINTSLICES, label_selector=_LABELS)
        self._plane = open_dataplane(settings.mode, facts)
        clock = self._clock = client.clock
        self._nodes, self._events, self._healthz = nodes, events, settings.healthz
        self._pulse = Pulse(clock)
        self._metrics = ProxyMetrics(settings.mode, clock)
        self._checks = HealthChecks(self._pulse, listener(), self._node_port_addresses, clock, self._unchecked)
        self._proxy = ServiceProxy(
            Sources(services=self._services, slices=self._slices, nodes=nodes),
            self._plane,
            facts,
            clock,
            flow_cleaner(self._node_port_addresses),
            Report(self._pulse, self._metrics, self._checks, clock),
        )

    def tasks(self, health: Health, announcer: Announcer) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name; checks and metrics are added to ``health``."""
        health.ready["proxy"] = self._problem
        health.metrics["proxy"] = self._samples

        async def tell() -> None:
            await self._proxy.programmed.wait()
            await announcer.insist({ANNOTATION: self.mode})

        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "services": self._services.run,
            "endpointslices": self._slices.run,
            "proxy": self._proxy.run,
            "proxy announcement": tell,
            "health check node ports": self._checks.run,
        }
        if self._healthz is not None:
            tasks["proxy health"] = partial(serve_page, listener(), self._healthz, self._page, self._clock)
        return tasks

    def _node_port_addresses(self) -> tuple[str, ...]:
        """Where node ports answer, as of now."""
        facts = self._proxy.facts
        if not facts.node_port_ranges:
            return facts.addresses
        with Netlink() as netlink:
            own = (address.cidr.partition("/")[0] for address in read_paths(netlink).addresses)
            return within(own, facts.node_port_ranges)

    def _page(self, path: str) -> bytes:
        if path == "/healthz":
            return self._pulse.healthz(self._nodes.objects.get(self._proxy.facts.name))
        if path == "/livez":
            return self._pulse.livez()
        return response("404 Not Found", b"/healthz /livez\n")

    def _unchecked(self, service: str, problem: str) -> None:
        known = self._services.objects.get(service)
        if known is not None:
            subject = reference("v1", "Service", known.metadata)
            self._events.event(subject, "Warning", "FailedToStartServiceHealthcheck", problem)

    def share(self) -> Share:
        """What the kernel should hold for Services, as last programmed."""
        tables: tuple[Table, ...] = self._plane.desired()
        return Share(part="proxy", tables=tables, note="" if tables else self._problem())

    def _problem(self) -> str:
        return "" if self._proxy.programmed.is_set() else "Services are not programmed yet"

    def _samples(self) -> list[Metric]:
        ports = self._proxy.services
        frontends = sum(len(some) for some in ports.values())
        conflicts = len(self._plane.conflicts())
        every = (port for some in ports.values() for port in some)
        return [
            *self._metrics.samples(every, self._pulse.answered),
            Sample("podwire_proxy_services", "Services that are programmed.", len(ports)),
            Sample("podwire_proxy_ports", "Ports of Services that are programmed.", frontends),
            Sample("podwire_proxy_conflicts", "Services whose frontend another one holds.", conflicts),
        ]
