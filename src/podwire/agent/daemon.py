"""The node daemon: puts CNI, routing and the Service proxy together, and nothing else.

Everything that the parts share is made here: the API client, the collection of Nodes, the health endpoint, the
supervisor. The proxy is imported only when it is listed in the configuration. Ending the process, in order or by
kill -9, leaves the kernel as it is; the next start compares and goes on.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwire.agent.config import AgentConfig, ClusterSettings, overlay
from podwire.agent.statepage import StatePage
from podwire.cluster.announcer import Announcer
from podwire.cluster.degraded import (
    BRIDGE_NOT_SEEN,
    CONNECTION_TABLE_FULL,
    FEATURE_MISSING,
    PEER_UNREACHED,
    POD_NOT_FOUND,
    SETTINGS_REFUSED,
    DegradedModes,
)
from podwire.cluster.inforce import InForcePage
from podwire.cni import program
from podwire.cni.service import CniService, CniSettings
from podwire.cni.wiring import WiringFacts
from podwire.errors import ConfigError, KernelError, Unsupported
from podwire.http.health import health_routes
from podwire.http.message import PROBE_LIMITS
from podwire.http.pages import Page, page_routes, serve_pages
from podwire.http.routes import dispatch
from podwire.http.server import HttpServer
from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS, NODES, Json
from podwire.model.node import Node
from podwire.observe.health import Health
from podwire.observe.log import Log, configure
from podwire.routing.machine import OWNER, KernelMachine
from podwire.routing.nodes import pod_cidrs_of
from podwire.routing.plan import Plan
from podwire.routing.router import Router
from podwire.routing.underlay import DEFAULT_MTU
from podwire.runtime.children import Children, spawn_program
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor
from podwire.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from podwire.agent.policies import PolicyPart

Tasks = dict[str, Callable[[], Awaitable[None]]]
"""What is to run, by name."""


class Agent:
    """One node's agent; ``run`` is its whole life."""

    def __init__(self, config: AgentConfig, client: Client) -> None:
        self.config = config
        self.client = client
        self.clock: Clock = client.clock
        self.health = Health()
        self.log = Log("agent")
        alone = "" if {"routing", "policy"} & set(config.parts) else f"metadata.name={config.node_name}"
        self.nodes = Informer(client, NODES, field_selector=alone)
        self.announcer = Announcer(client, config.node_name, self._all, networked="routing" in config.parts)
        self.events = EventRecorder(client, "podwire-agent", host=config.node_name)
        self.degraded = DegradedModes(self.announcer, self.events, config.node_name, self._all)
        self.machine = KernelMachine()
        self.state_page = StatePage()
        self.in_force = InForcePage()
        self.pages: dict[str, Page] = {}
        self.public_pages: dict[str, Page] = {}
        """The pages that the health endpoint answers as well."""
        self._requests = TaskSet(lambda task, failure: self.log.error("request failed", failure=failure, task=task))
        self._settings: Informer[Json] | None = None
        self._on_settings: list[Callable[[ClusterSettings], None]] = []

    async def run(self) -> None:
        """Runs the parts until cancelled.

        Raises: ConfigError, KernelError when a part cannot even be made; no part runs then.
        """
        self.health.ready["nodes"] = lambda: "" if self.nodes.synced.is_set() else "Nodes are not listed yet"
        self.pages |= {"/state": self.state_page.page, "/seen": self.in_force.page}
        tasks: Tasks = {"health": self._serve_health, "pages": self._serve_pages}
        supervisor = Supervisor(self.clock, self._report)
        self._settings = self._make_settings(tasks)
        cni = self._make_cni(tasks) if "cni" in self.config.parts else None
        if "routing" in self.config.parts:
            self._make_routing(tasks, cni, supervisor)
        elif cni is not None:
            self._follow_node(cni)
        if "policy" in self.config.parts:
            self._make_policies(tasks, cni)
        elif cni is not None:
            self._leave_policies()
        if "proxy" in self.config.parts:
            self._make_services(tasks)
        tasks |= {"nodes": self.nodes.run, "degraded modes": self.degraded.run, "events": self.events.run}
        try:
            async with supervisor:
                for name, body in tasks.items():
                    supervisor.start(name, body)
                self.log.info("started", node=self.config.node_name, parts=",".join(self.config.parts))
        finally:
            await self._requests.close()

    def _report(self, task: str, failure: BaseException) -> None:
        self.log.error("task failed and is started again", failure=failure, task=task)

    async def _serve_health(self) -> None:
        section, health = self.config.health, self.health
        if section.port == 0:
            return
        routes = health_routes(health.live_problems, health.ready_problems, health.render)
        routes |= page_routes(self.public_pages, self._requests, self.clock)
        server = HttpServer(dispatch(routes), self._requests, self.clock, PROBE_LIMITS)
        await server.listen(section.address, section.port)
        await server.run()

    async def _serve_pages(self) -> None:
        await serve_pages(self.config.agent_socket, self.pages, self._requests, self.clock)

    def _make_cni(self, tasks: Tasks) -> CniService:
        config = self.config
        service = CniService(
            CniSettings(
                socket=config.socket,
                database=config.database,
                network=config.cni.network,
                cooldown_s=config.cni.cooldown_s,
            ),
            self.clock,
        )
        service.recover()
        self.health.ready["cni"] = service.problem
        self.health.metrics["cni"] = service.samples

        self.state_page.parts["cni"] = service.pods.shares
        tasks |= {
            "cni": service.run,
            "cni deletion": service.delete_detached,
            "cni sweep": service.sweep,
            "cni heal": service.heal,
        }
        if config.cni.bin_dir:
            program.install(config.cni.bin_path)
        if config.cni.conf_dir:
            program.write_configuration(config.cni.conf_path, config.cni.conflist)
        return service

    def _make_routing(self, tasks: Tasks, cni: CniService | None, supervisor: Supervisor) -> None:
        router = Router(self.config.node_name, self._all, self.machine, self.clock)
        router.cidrs = self.config.networks
        run_dir = Path(self.config.run_dir, "routing")
        router.run_dir = str(run_dir)
        router.programs = Children(run_dir / "children", spawn_program, supervisor, self.clock, router.note_child)
        router.configure(self.config.routing_settings)
        self._on_settings.append(lambda settings: router.configure(settings.routing))
        settings = self._settings
        self.nodes.subscribe(router.node_changed)
        self.health.ready["routing"] = lambda: router.problem
        self.health.metrics["routing"] = router.samples

        self.state_page.parts["routing"] = lambda: [router.share(OWNER)]
        self.in_force.parts["routing"] = lambda: {NODES.plural: self.nodes.versions} if router.settled else None

        async def announce(plan: Plan) -> bool:
            me, _ = router.me()
            if cni is not None and me is not None:
                cni.set_node(_pod_node(plan.pod_mtu, me.addresses, self._own()))
            self.degraded.report("routing", FEATURE_MISSING, router.missing)
            self.degraded.report("peers", PEER_UNREACHED, router.unreached)
            return await self.announcer.announce(plan.facts.annotations(), network=True)

        async def route() -> None:
            await self.nodes.synced.wait()
            if settings is not None:
                await settings.synced.wait()
            await router.run(announce)

        tasks |= {"routing": route, "routing tick": router.tick}

    def _make_settings(self, tasks: Tasks) -> "Informer[Json] | None":
        """Follows the cluster's settings; each part that can change while it runs is told of them."""
        if not self.config.settings or not {"routing", "proxy", "policy"} & set(self.config.parts):
            return None
        namespace, _, name = self.config.settings.partition("/")
        informer: Informer[Json] = Informer(
            self.client, CONFIGMAPS, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        last = [self.config.routing_settings.backend]

        def changed(key: str, _old: Json | None, new: Json | None) -> None:
            data: Mapping[str, Any] = (new or {}).get("data") or {}
            try:
                found = overlay(self.config.routing, data, f"ConfigMap {key}", self.config.proxy, self.config.policy)
            except ConfigError as problem:
                text = f"{problem}; the last good settings stay (routing.backend {last[0]})"
                self.degraded.report("settings", SETTINGS_REFUSED, text)
                return
            self.degraded.report("settings", SETTINGS_REFUSED, "")
            last[0] = found.routing.backend
            for take_over in self._on_settings:
                take_over(found)

        informer.subscribe(changed)
        tasks["settings"] = informer.run
        return informer

    def _all(self) -> Mapping[str, Node]:
        return self.nodes.objects

    def _own(self) -> Node | None:
        return self.nodes.objects.get(self.config.node_name)

    def _follow_node(self, cni: CniService) -> None:
        """Without routing: the pod CIDRs of the Node, the MTU of the device that carries its address."""

        def changed(_key: str, _old: Node | None, _new: Node | None) -> None:
            node = self._own()
            if node is None:
                return
            own = Router(self.config.node_name, self._all, self.machine, self.clock)
            me, _ = own.me()
            if me is not None:
                cni.set_node(_pod_node(me.underlay.mtu, me.addresses, node))
            elif node.pod_cidrs:
                cni.set_node(_pod_node(DEFAULT_MTU, (), node))

        self.nodes.subscribe(changed)

    def _make_policies(self, tasks: Tasks, cni: CniService | None) -> None:
        from podwire.agent.policies import PolicyPart
        from podwire.policy.status.nodes import LOG_PAGE

        policies = PolicyPart(self.config, self.client, self.nodes, self.events)

        def note() -> None:
            self.degraded.report("policy", FEATURE_MISSING, self._policies_lack(policies.mode, policies.lacking))

        note()
        if cni is not None:
            policies.guard(cni.pods, tuple(cni.leases.held.values()))
        else:
            self._make_others(tasks, policies)
        self._on_settings.append(lambda settings: policies.configure(settings.policy, settings.routing.udp_ports()))
        tasks |= policies.tasks(self.health, self._settings.synced if self._settings is not None else None)
        self.state_page.parts["policy"] = lambda: [policies.share()]
        self.in_force.parts["policy"] = policies.in_force
        tasks["policy announcement"] = lambda: policies.announce(self.announcer, note)
        pages = policies.status.pages()
        self.pages |= pages
        told = self.config.health.policy_log
        self.public_pages |= {path: page for path, page in pages.items() if told or path != LOG_PAGE}

    def _policies_lack(self, mode: str, lacking: tuple[str, KernelError] | None) -> str:
        """What keeps a data plane of policies from being used; empty when it is."""
        from podwire.policy.registry import FEATURES

        if lacking is None:
            return ""
        wanted, failure = lacking
        lacks = self.machine.lacks(FEATURES[wanted]) if wanted in FEATURES else ""
        lacks = lacks or failure.detail or str(failure)
        if mode == "none":
            return f"policy: {lacks}; pods that policies select are refused"
        return f"policy.mode {wanted}: {lacks}; {mode} is used"

    def _make_others(self, tasks: Tasks, policies: "PolicyPart") -> None:
        """Other plugins wire this node's pods."""
        from podwire.agent.otherplugins import OtherPlugins

        others = OtherPlugins(self.config, policies, self.clock)
        others.tell(
            lambda text: self.degraded.report("bridges", BRIDGE_NOT_SEEN, text and f"policy: {text}"),
            lambda text: self.degraded.report("pods", POD_NOT_FOUND, text and f"policy: {text}"),
        )
        self.health.metrics["policy others"] = others.samples
        tasks |= others.tasks()

    def _leave_policies(self) -> None:
        """Without the part, nobody would tell an earlier one's tables of new pods: they go."""
        from podwire.policy.modes import clear_all

        try:
            if clear_all():
                self.log.warning("removed the rules of policies: `parts` in the configuration does not name policy")
        except KernelError as problem:
            self.log.info("cannot look for the rules of policies that an earlier agent left", problem=problem)

    def _make_services(self, tasks: Tasks) -> None:
        from podwire.agent.services import ServicePart
        from podwire.proxy.occupancy import OccupancyWatch
        from podwire.proxy.settings import parse_settings

        try:
            services = ServicePart(self.config, self.client, self.nodes, self.events)
        except Unsupported as missing:
            mode = parse_settings(self.config.proxy).mode
            problem = f"{self._lacks(mode, missing)}; Services are not programmed"
            self.degraded.report("proxy", FEATURE_MISSING, problem)
            self.health.ready["proxy"] = lambda: problem
            return

        def note() -> None:
            failed = services.problem
            text = f"{self._lacks(*failed)}; {services.mode} is used" if failed is not None else ""
            self.degraded.report("proxy", FEATURE_MISSING, text)

        async def ready() -> None:
            if self._settings is not None:
                await self._settings.synced.wait()

        self._on_settings.append(lambda settings: services.configure(settings.proxy))
        tasks |= services.tasks(self.health, self.announcer, note, ready)
        table = OccupancyWatch(self.clock, lambda text: self.degraded.report("conntrack", CONNECTION_TABLE_FULL, text))
        self.health.metrics["conntrack"] = table.samples
        tasks["conntrack"] = table.run
        self.state_page.parts["proxy"] = lambda: [services.share()]
        self.in_force.parts["proxy"] = services.in_force

    def _lacks(self, mode: str, failure: KernelError) -> str:
        """What keeps a data plane from being used."""
        from podwire.proxy.registry import FEATURES

        lacks = self.machine.lacks(FEATURES[mode]) if mode in FEATURES else ""
        return f"proxy.mode {mode}: {lacks or failure.detail or failure}"


def _pod_node(mtu: int, addresses: tuple[Any, ...], node: Node | None) -> WiringFacts:
    sources = {address.version: str(address) for address in reversed(addresses)}
    cidrs = tuple(str(cidr) for cidr in pod_cidrs_of(node)) if node is not None else ()
    return WiringFacts(mtu=mtu, sources=sources, cidrs=cidrs)


async def run(config: AgentConfig, clock: Clock) -> None:
    """Runs an agent until cancelled.

    Raises: ConfigError when the kubeconfig or the configuration is wrong; nothing is touched then.
    """
    configure(config.log_level)
    client = Client(load(config.kubeconfig or None, os.environ), clock, manager="podwire-agent")
    try:
        await Agent(config, client).run()
    finally:
        await client.close()
