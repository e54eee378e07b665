"""The servers of the proxy's health pages: one for ``/healthz`` and ``/livez``, one for each healthCheckNodePort.

A load balancer in front of the cluster asks every node on the healthCheckNodePort of a Service with
``externalTrafficPolicy: Local`` and sends connections to nodes that answer 200. Guarantees:

1. A listener opens and closes after the Service is programmed, never before.
2. It listens only on addresses at which node ports answer, of the families that the Service has.
3. The answer has the current number of endpoints of the address's family, so that a pod with two addresses is one
   endpoint.
4. When a port is not available, the Service gets one Event, and the port is tried again every 5 s and after every
   change.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from podwire.http.answer import Handler
from podwire.http.message import PROBE_LIMITS, Request, Response, text_response
from podwire.http.server import HttpServer
from podwire.kernel.netns import NetnsPath, inside
from podwire.observe.log import Log
from podwire.proxy.health import Pulse, service_answer
from podwire.proxy.servicemap import ServiceMap
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

Listen = Callable[[str, int], socket.socket]
"""A listening socket at an address and port. Raises: OSError."""

RETRY_S = 5.0


def listener(netns: NetnsPath = None) -> Listen:
    """Listens in a network namespace (None: that of this process)."""

    def listen(address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with inside(netns):
            return socket.create_server((address, port), family=family, backlog=128)

    return listen


async def _open(sock: socket.socket, handler: Handler, tasks: TaskSet, clock: Clock) -> HttpServer:
    server = HttpServer(handler, tasks, clock, PROBE_LIMITS)
    await server.listen_on(sock)
    return server


async def serve_at(listen: Listen, address: tuple[str, int], handler: Handler, tasks: TaskSet, clock: Clock) -> None:
    """Answers at an address and port until cancelled; while the port is not available, tries again every 5 s."""
    log = Log("proxy")
    logged = ""
    while True:
        try:
            sock = listen(*address)
        except OSError as problem:
            if str(problem) != logged:
                log.warning("cannot listen, trying again", address=address[0], port=address[1], problem=problem)
            logged = str(problem)
            await clock.sleep(RETRY_S)
            continue
        await (await _open(sock, handler, tasks, clock)).run()


class MovableServer:
    """A server whose address may change while it runs; without an address it does not listen."""

    def __init__(self, listen: Listen, address: tuple[str, int] | None, handler: Handler, clock: Clock) -> None:
        self._listen = listen
        self._address = address
        self._handler = handler
        self._clock = clock
        self._moved = asyncio.Event()
        self._log = Log("proxy")

    def move(self, address: tuple[str, int] | None) -> None:
        """Moves the server to another address and port; None: stops listening."""
        if address != self._address:
            self._address = address
            self._moved.set()

    async def run(self) -> None:
        """Answers until cancelled."""
        tasks = TaskSet(lambda task, failure: self._log.error("task failed", failure=failure, task=task))
        try:
            while True:
                self._moved.clear()
                if self._address is not None:
                    tasks.start("server", serve_at(self._listen, self._address, self._handler, tasks, self._clock))
                await self._moved.wait()
                await tasks.close()
        finally:
            await tasks.close()


class _Check(msgspec.Struct, frozen=True):
    """The health check of one Service: the port, and the number of ready endpoints on this node by family."""

    port: int
    endpoints: Mapping[str, int]
    """Without the families (``ip``, ``ip6``) that the Service does not have."""


class HealthChecks:
    """The healthCheckNodePorts of all Services.

    ``addresses`` returns the addresses to listen on; ``refused`` is called with Service and problem when a port is not
    available.
    """

    def __init__(
        self,
        pulse: Pulse,
        listen: Listen,
        addresses: Callable[[], tuple[str, ...]],
        clock: Clock,
        refused: Callable[[str, str], None],
    ) -> None:
        self._pulse = pulse
        self._listen = listen
        self._addresses = addresses
        self._clock = clock
        self._refused = refused
        self._checks: dict[str, _Check] = {}
        self._servers: dict[tuple[str, str, int], HttpServer] = {}
        self._reported: set[tuple[str, str, int]] = set()
        self._retrying = False
        self._wake = asyncio.Event()
        self._log = Log("proxy")
        self._tasks = TaskSet(lambda task, failure: self._log.error("task failed", failure=failure, task=task))

    def update(self, changed: ServiceMap, *, moved: bool = False) -> None:
        """Applies programmed Services; an empty tuple: deleted. ``moved``: the addresses may have changed."""
        before = self._listeners(changed)
        for service, ports in changed.items():
            port = next((p.health_check_node_port for p in ports if p.health_check_node_port), 0)
            if port:
                ready: dict[str, set[str]] = {}
                for resolved in ports:
                    ready.setdefault(resolved.family, set()).update(resolved.local_ready)
                endpoints = {family: len(addresses) for family, addresses in ready.items()}
                self._checks[service] = _Check(port, endpoints)
            else:
                self._checks.pop(service, None)
        if before != self._listeners(changed) or (moved and self._checks):
            self._wake.set()

    def _listeners(self, services: Iterable[str]) -> dict[str, tuple[int, frozenset[str]]]:
        """Port and families of the checks of some Services."""
        checks = ((service, self._checks[service]) for service in services if service in self._checks)
        return {service: (check.port, frozenset(check.endpoints)) for service, check in checks}

    @property
    def listening(self) -> tuple[tuple[str, str, int], ...]:
        """Service, address and port of every open listener, sorted."""
        return tuple(sorted(self._servers))

    async def run(self) -> None:
        """Opens and closes listeners as Services change, until cancelled; then closes all listeners."""
        try:
            while True:
                await self._reconcile()
                await self._wake.wait()
                self._wake.clear()
        finally:
            for server in self._servers.values():
                await server.close()
            self._servers.clear()
            await self._tasks.close()

    async def _reconcile(self) -> None:
        addresses = self._addresses() if self._checks else ()
        listener_keys = {
            (service, address, check.port)
            for service, check in self._checks.items()
            for address in addresses
            if _family(address) in check.endpoints
        }
        for unwanted in self._servers.keys() - listener_keys:
            await self._servers.pop(unwanted).close()
        self._reported &= listener_keys
        failed = False
        for listener_key in sorted(listener_keys - self._servers.keys()):
            service, address, port = listener_key
            try:
                sock = self._listen(address, port)
            except OSError as problem:
                failed = True
                if listener_key not in self._reported:
                    self._reported.add(listener_key)
                    self._refused(service, f"node port {port} on {address}: {os.strerror(problem.errno or 0)}")
                continue
            self._reported.discard(listener_key)
            self._servers[listener_key] = await _open(
                sock, partial(self._answer, service, _family(address)), self._tasks, self._clock
            )
        if failed and not self._retrying:
            self._retrying = True
            self._tasks.start("health check retry", self._retry())

    async def _retry(self) -> None:
        await self._clock.sleep(RETRY_S)
        self._retrying = False
        self._wake.set()

    def _answer(self, service: str, family: str, _: Request) -> Response:
        check = self._checks.get(service)
        if check is None:
            return text_response(404, "the Service does not exist")
        return service_answer(service, check.endpoints.get(family, 0), healthy=self._pulse.healthy)


def _family(address: str) -> str:
    return "ip6" if ":" in address else "ip"
