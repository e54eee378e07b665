"""The node daemon: constructs the configured parts and runs their tasks.

Modules of a part are imported only when the part is configured. When the process ends, in order or by kill -9, the
kernel keeps its state; the next start compares it and continues.
"""

import gc
import os

from podwire.agent import settings, statefolder
from podwire.agent.config import AgentConfig
from podwire.agent.shared import Shared
from podwire.http.health import health_routes
from podwire.http.message import PROBE_LIMITS
from podwire.http.pages import page_routes, serve_pages
from podwire.http.routes import dispatch
from podwire.http.server import HttpServer
from podwire.kernel import sysctl
from podwire.kernel.sysctl_record import SysctlRecord, recording
from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.observe.log import Log, configure
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor
from podwire.runtime.tasks import TaskSet


class Agent:
    """One node's agent; ``run`` runs it until its end."""

    def __init__(self, config: AgentConfig, client: Client) -> None:
        self.shared = Shared(config, client)
        self.log = Log("agent")
        self._requests = TaskSet(lambda task, failure: self.log.error("request failed", failure=failure, task=task))

    async def run(self) -> None:
        """Runs the parts until cancelled.

        Raises: ConfigError, KernelError when a part cannot be constructed; no part runs then.
        """
        shared, parts = self.shared, self.shared.config.parts
        nodes = shared.nodes
        shared.health.ready["nodes"] = lambda: "" if nodes.synced.is_set() else "Nodes are not listed yet"
        shared.tasks |= {"health": self._serve_health, "pages": self._serve_pages}
        supervisor = Supervisor(shared.clock, self._report)
        settings.add(shared)
        add_parts(shared, supervisor)
        shared.tasks |= {"nodes": nodes.run, "degraded modes": shared.degraded.run, "events": shared.events.run}
        try:
            async with supervisor:
                for name, body in shared.tasks.items():
                    supervisor.start(name, body)
                self.log.info("started", node=shared.config.node_name, parts=",".join(parts))
        finally:
            await self._requests.close()

    def _report(self, task: str, failure: BaseException) -> None:
        self.log.error("task failed and is started again", failure=failure, task=task)

    async def _serve_health(self) -> None:
        shared = self.shared
        section, health = shared.config.health, shared.health
        if section.port == 0:
            return
        routes = health_routes(health.live_problems, health.ready_problems, health.render)
        routes |= page_routes(shared.public_pages, self._requests, shared.clock)
        server = HttpServer(dispatch(routes), self._requests, shared.clock, PROBE_LIMITS)
        await server.listen(section.address, section.port)
        await server.run()

    async def _serve_pages(self) -> None:
        shared = self.shared
        await serve_pages(shared.config.agent_socket, shared.pages, self._requests, shared.clock)


def add_parts(shared: Shared, supervisor: Supervisor) -> None:
    """Adds the configured parts, and the substitutes for parts that are not configured."""
    parts, cni = shared.config.parts, None
    if "cni" in parts:
        from podwire.agent import pods

        cni = pods.add(shared)
        if shared.config.cni.ipam == "blocks":
            from podwire.agent import blocks

            blocks.add(shared, cni)
        if "routing" not in parts:
            pods.follow_node(shared, cni)
    if "routing" in parts:
        from podwire.agent import routes

        routes.add(shared, cni, supervisor)
    if "policy" in parts:
        from podwire.agent import policies

        policies.add(shared, cni)
    elif cni is not None:
        from podwire.agent import dnsanswers, nodelocal
        from podwire.policy.modes import clear_unused

        clear_unused()
        dnsanswers.add(shared, None)
        nodelocal.add(shared, None)
    if "proxy" in parts:
        from podwire.agent import services

        services.add(shared)
    if "loadbalancer" in parts:
        from podwire.agent import balancers

        balancers.add(shared, supervisor)


async def run(config: AgentConfig, clock: Clock) -> None:
    """Runs an agent until cancelled.

    Raises: ConfigError when the kubeconfig or the configuration is wrong, or a folder cannot be written; nothing is
    changed then.
    """
    configure(config.log_level)
    statefolder.check(config)
    client = Client(load(config.kubeconfig or None, os.environ), clock, manager="podwire-agent")
    try:
        agent = Agent(config, client)
        gc.freeze()  # Everything is imported: a search for garbage in it takes 10 ms, several times in the first run.
        with recording(SysctlRecord(config.sysctl_record, sysctl.devices())):
            await agent.run()
    finally:
        await client.close()
