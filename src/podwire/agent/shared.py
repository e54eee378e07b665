"""Objects that the parts of an agent share, and where each part registers its tasks, checks, metrics and pages."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from podwire.agent.config import AgentConfig, ClusterSettings
from podwire.agent.statepage import StatePage
from podwire.bgp.configuration import ServiceRoutes
from podwire.cluster.announcer import Announcer
from podwire.cluster.degraded import DegradedModes
from podwire.cluster.inforce import InForcePage
from podwire.http.pages import Page
from podwire.kernel.features import Features
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, NAMESPACES, NODES, PODS, SERVICES
from podwire.model.meta import Object
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.observe.health import Health
from podwire.policy.trim import trim_pod
from podwire.proxy.trim import trim_service, trim_slice
from podwire.runtime.clock import Clock

Tasks = dict[str, Callable[[], Awaitable[None]]]
"""The tasks to run, by name."""


class Shared:
    """The state of one node's agent that its parts share."""

    def __init__(self, config: AgentConfig, client: Client) -> None:
        self.config = config
        self.client = client
        self.clock: Clock = client.clock
        self.health = Health()
        alone = "" if {"routing", "policy", "loadbalancer"} & set(config.parts) else f"metadata.name={config.node_name}"
        self.nodes: Informer[Node] = Informer(client, NODES, field_selector=alone)
        self.announcer = Announcer(client, config.node_name, self.all_nodes, networked="routing" in config.parts)
        self.events = EventRecorder(client, "podwire-agent", host=config.node_name)
        self.events.follow_rejected(self.nodes)
        self.degraded = DegradedModes(self.announcer, self.events, config.node_name, self.all_nodes)
        self.features = Features()
        self.state_page = StatePage()
        self.in_force = InForcePage()
        self.pages: dict[str, Page] = {"/state": self.state_page.page, "/seen": self.in_force.page}
        self.public_pages: dict[str, Page] = {}
        """The pages that the health endpoint answers as well."""
        self.tasks: Tasks = {}
        self.policies: tuple[Informer[Any], ...] = ()
        """The informers of policies, where the agent enforces policies."""
        self.on_settings: list[Callable[[ClusterSettings], None]] = []
        """Called with the settings of the cluster, at the start and whenever they change."""
        self._selected: tuple[Informer[Pod], Informer[Object]] | None = None
        self._services: tuple[Informer[Service], Informer[EndpointSlice]] | None = None
        self.take_service_routes: Callable[[ServiceRoutes], bool] = lambda _: False
        """Hands the routes of load balancers to the engine of routing; False: routing has none."""
        self.settings_known: asyncio.Event | None = None
        """Set when the settings of the cluster are known; None: the agent follows none."""

    def selected(self) -> tuple[Informer[Pod], Informer[Object]]:
        """The informers of pods, with the fields that selectors need, and of namespaces; parts run them."""
        if self._selected is None:
            pods, namespaces = Informer(self.client, PODS), Informer(self.client, NAMESPACES)
            pods.trim = trim_pod
            self._selected = pods, namespaces
        return self._selected

    def services(self) -> tuple[Informer[Service], Informer[EndpointSlice]]:
        """The informers of Services and EndpointSlices, with the fields that the proxy needs; they are tasks."""
        if self._services is None:
            labels = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"
            services = Informer(self.client, SERVICES, label_selector=labels.partition(",")[0])
            slices = Informer(self.client, ENDPOINTSLICES, label_selector=labels)
            services.trim, slices.trim = trim_service, trim_slice
            self.events.follow_rejected(services, slices)
            self.tasks |= {"services": services.run, "endpointslices": slices.run}
            self._services = services, slices
        return self._services

    def all_nodes(self) -> Mapping[str, Node]:
        """The Nodes that are known, by name."""
        return self.nodes.objects

    def own_node(self) -> Node | None:
        """The Node of this agent, None while it is not known."""
        return self.nodes.objects.get(self.config.node_name)

    async def until_settings_are_known(self) -> None:
        """Waits for the settings of the cluster, where the agent follows them."""
        if self.settings_known is not None:
            await self.settings_known.wait()
