"""The Service proxy as a part of the agent: its collections, its data plane, its place in health and metrics."""

from collections.abc import Awaitable, Callable

from podwire.agent.announce import Announcer
from podwire.agent.config import AgentConfig
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, SERVICES
from podwire.model.node import Node
from podwire.observe.health import Health, Sample
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.registry import open_dataplane
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import NodeFacts
from podwire.proxy.settings import parse_settings
from podwire.state.nft import Table
from podwire.state.share import Share

ANNOTATION = "podwire.io/proxy"
_LABELS = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"


class ServicePart:
    """Programs Services on one node."""

    def __init__(self, config: AgentConfig, client: Client, nodes: Informer[Node]) -> None:
        settings = parse_settings(config.proxy)
        facts = NodeFacts(
            name=config.node_name,
            pod_cidrs=config.cluster_cidrs,
            service_cidrs=config.service_cidrs,
            masquerade_bit=settings.masquerade_bit,
            masquerade_all=settings.masquerade_all,
        )
        self.mode = settings.mode
        self._services = Informer(client, SERVICES, label_selector=_LABELS.partition(",")[0])
        self._slices = Informer(client, ENDPOINTSLICES, label_selector=_LABELS)
        self._plane = open_dataplane(settings.mode, facts)
        self._proxy = ServiceProxy(
            Sources(services=self._services, slices=self._slices, nodes=nodes),
            self._plane,
            facts,
            client.clock,
            flow_cleaner(lambda: self._proxy.facts.addresses),
        )

    def tasks(self, health: Health, announcer: Announcer) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name; checks and metrics are added to ``health``."""
        health.ready["proxy"] = self._problem
        health.metrics["proxy"] = self._samples

        async def tell() -> None:
            await self._proxy.programmed.wait()
            await announcer.insist({ANNOTATION: self.mode})

        return {
            "services": self._services.run,
            "endpointslices": self._slices.run,
            "proxy": self._proxy.run,
            "proxy announcement": tell,
        }

    def share(self) -> Share:
        """What the kernel should hold for Services, as last programmed."""
        tables: tuple[Table, ...] = self._plane.desired()
        return Share(part="proxy", tables=tables, note="" if tables else self._problem())

    def _problem(self) -> str:
        return "" if self._proxy.programmed.is_set() else "Services are not programmed yet"

    def _samples(self) -> list[Sample]:
        ports = self._proxy.services
        frontends = sum(len(some) for some in ports.values())
        conflicts = len(self._plane.conflicts())
        return [
            Sample("podwire_proxy_services", "Services that are programmed.", len(ports)),
            Sample("podwire_proxy_ports", "Ports of Services that are programmed.", frontends),
            Sample("podwire_proxy_conflicts", "Services whose frontend another one holds.", conflicts),
        ]
