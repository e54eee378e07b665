"""The gateway: follows the API, feeds engines, writes status, serves health, metrics and its entry.

The entry is the page ``/entry`` on the socket ``gateway.sock`` in the run directory. Engines serve what they have while
this process is away.
"""

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from podwire.errors import ApiError
from podwire.gateway.api.controller import PART as GATEWAY_API
from podwire.gateway.api.controller import GatewayApiController
from podwire.gateway.api.writer import GatewayApiWriter
from podwire.gateway.backends import Place
from podwire.gateway.certificates import self_signed
from podwire.gateway.config import GatewayConfig
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.ads import DiscoveryServer
from podwire.gateway.envoy.engine import DISCOVERY_SOCKET, engine_settings
from podwire.gateway.envoy.ready import READY_LISTENER, ready_listener
from podwire.gateway.envoy.resources import LISTENER
from podwire.gateway.envoy.snapshot import EngineRefusal
from podwire.gateway.ingress.controller import PART as INGRESS
from podwire.gateway.ingress.controller import IngressController, IngressOptions
from podwire.gateway.ingress.status import IngressStatusWriter, PublishedAddresses
from podwire.gateway.ingress.translate import IngressPorts
from podwire.http.health import health_routes
from podwire.http.message import PROBE_LIMITS
from podwire.http.pages import Query, serve_pages
from podwire.http.routes import dispatch
from podwire.http.server import HttpServer
from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.kube.controller import Environment
from podwire.kube.lease import Election, LeaderElection
from podwire.kube.resources import NODES
from podwire.model.node import ZONE_LABEL, Node
from podwire.observe.health import Health, Metric, Sample
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor
from podwire.runtime.tasks import TaskSet

_LEASE = "podwire-gateway"


async def run(config: GatewayConfig, clock: Clock) -> None:
    """Runs the gateway until cancelled.

    Raises: ConfigError for a wrong kubeconfig; OSError when a socket cannot be created.
    """
    client = Client(load(config.kubeconfig or None, os.environ), clock, manager="podwire-gateway")
    try:
        await _Gateway(config, client).run()
    finally:
        await client.close()


class _Gateway:
    """The parts of one process and what connects them."""

    def __init__(self, config: GatewayConfig, client: Client) -> None:
        self._config = config
        self._clock = client.clock
        self._log = Log("gateway")
        self._run_dir = Path(config.run_dir)
        self._environment = Environment(client, "gateway")
        self._server = DiscoveryServer(self._run_dir / DISCOVERY_SOCKET, self._refused)
        always = {LISTENER: {READY_LISTENER: ready_listener(config.listen, config.ready_port)}}
        self._feed = EngineFeed(self._server, always, (INGRESS, GATEWAY_API))
        options = IngressOptions(
            controller=config.ingress_controller,
            ports=IngressPorts(config.http_port, config.https_port),
            default_certificate=self_signed(self._clock.now()),
            config_map=config.ingress_config,
        )
        self._ingress = IngressController(self._environment, options, engine_settings(config), self._feed)
        published = PublishedAddresses(config.publish_service, config.publish_addresses, config.publish_nodes)
        self._status = IngressStatusWriter(self._environment, self._ingress, published)
        self._gateway_api = GatewayApiController(
            self._environment, config.gateway_controller, config.namespace, engine_settings(config), self._feed
        )
        self._server.on_answer = self._answered
        self._gateway_api_writer = GatewayApiWriter(
            self._environment, self._gateway_api, config.external_traffic_policy
        )
        self._election = LeaderElection(
            client, Election(config.namespace, _LEASE, f"{socket.gethostname()}_{id(self):x}")
        )
        self._health = Health()
        self._health.ready = {"api": self._lists_problem, "engine": self._engine_problem}
        self._health.metrics = {"gateway": self._samples}
        self._refusals = 0
        self._tasks = TaskSet(lambda name, error: self._log.error("request failed", task=name, failure=error))

    async def run(self) -> None:
        """Serves until cancelled."""
        await self._server.start()
        try:
            async with Supervisor(self._clock, self._report) as supervisor:
                supervisor.start("health", self._serve_health)
                supervisor.start("pages", self._serve_pages)
                supervisor.start("status", self._write_status)
                supervisor.start("place", self._find_place)
                await self._environment.run({INGRESS: self._ingress, GATEWAY_API: self._gateway_api})
        finally:
            await self._server.stop()

    async def _write_status(self) -> None:
        while True:
            await self._election.run(self._lead)

    async def _lead(self) -> None:
        async with Supervisor(self._clock, self._report) as supervisor:
            self._status.start(supervisor)
            self._gateway_api_writer.start(supervisor)

    async def _find_place(self) -> None:
        """Reads the zone of the node, once; without the right to, or a name of the node, no endpoint is preferred."""
        name = os.environ.get("NODE_NAME", "")
        if not name:
            return
        try:
            node = await self._environment.client.get(NODES, name, decode_as=Node)
        except ApiError as problem:
            if problem.code not in (403, 404):
                raise
            self._log.warning("the zone of the node is not known", node=name, problem=problem)
            return
        place = Place(node=name, zone=node.metadata.labels.get(ZONE_LABEL, ""))
        self._ingress.set_place(place)
        self._gateway_api.set_place(place)

    async def _serve_health(self) -> None:
        health = self._health
        routes = health_routes(health.live_problems, health.ready_problems, health.render)
        server = HttpServer(dispatch(routes), self._tasks, self._clock, PROBE_LIMITS)
        await server.listen("", self._config.health_port)
        await server.run()

    def _lists_problem(self) -> str:
        return "" if self._feed.complete else "the lists of the API are not complete yet"

    def _engine_problem(self) -> str:
        return "" if self._server.engines else "no engine is connected"

    def _samples(self) -> Iterable[Metric]:
        entries = self._feed.entries.values()
        yield Sample("podwire_gateway_engines", "Engines that are connected.", self._server.engines)
        yield Sample(
            "podwire_gateway_engines_in_step", "Whether all of them have the newest resources.", self._server.in_step
        )
        yield Sample(
            "podwire_gateway_backends", "Backends of all routes.", sum(len(entry.backends) for entry in entries)
        )
        routes = sum(len(host.routes) for entry in entries for table in entry.tables.values() for host in table.hosts)
        yield Sample("podwire_gateway_routes", "Routes of all tables.", routes)
        yield Sample(
            "podwire_gateway_refusals",
            "Answers of engines that refused resources.",
            self._refusals,
            kind="counter",
        )

    async def _serve_pages(self) -> None:
        await serve_pages(self._run_dir / "gateway.sock", {"/entry": self._entry}, self._tasks, self._clock)

    def _entry(self, _query: Query) -> Iterator[str]:
        """The entries as JSON, without keys of certificates."""
        for part, entry in self._feed.entries.items():
            public = {
                name: msgspec.structs.replace(certificate, key="") for name, certificate in entry.certificates.items()
            }
            shown = msgspec.structs.replace(entry, certificates=public)
            yield msgspec.json.encode({part: shown}).decode()

    def _refused(self, refusal: EngineRefusal) -> None:
        self._refusals += 1
        self._log.error(
            "an engine refused resources and keeps its last ones",
            kind=refusal.kind,
            names=",".join(refusal.names),
            problem=refusal.message,
        )

    def _answered(self) -> None:
        self._ingress.answered()
        self._gateway_api.answered()

    def _report(self, name: str, failure: BaseException) -> None:
        self._log.error("task failed", failure=failure, task=name)
