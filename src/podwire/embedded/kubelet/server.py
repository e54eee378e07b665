"""The kubelet's HTTP server: logs, exec, attach, port-forward, pods, health, metrics.

TLS with a client certificate of the cluster's authority, for everything but ``/healthz``. The API server forwards
``pods/log``, ``pods/exec``, ``pods/attach`` and ``pods/portforward`` here. Paths as in kubernetes
pkg/kubelet/server/server.go.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from podwire.embedded.kubelet import forward, logs, remote
from podwire.embedded.kubelet.config import KubeletConfig
from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.pods import Pods
from podwire.embedded.kubelet.podstate import PodState
from podwire.http.answer import Result, Stream, Streaming
from podwire.http.message import Request, Response
from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.http.websocket import WebSocket, accept, choose_protocol, is_upgrade
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

_TEXT = "text/plain; charset=utf-8"


def _say(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), _TEXT)


class KubeletServer:
    """Routes requests to the node's pods."""

    def __init__(self, pods: Pods, tasks: TaskSet, clock: Clock) -> None:
        self._pods = pods
        self._tasks = tasks
        self._clock = clock
        self._routes: dict[str, Callable[[Request, list[str]], Result]] = {
            "containerLogs": self._logs,
            "exec": self._exec,
            "attach": self._attach,
            "portForward": self._forward,
            "pods": lambda request, parts: self._list(),
            "metrics": lambda request, parts: self._metrics(),
        }

    async def listen(self, config: KubeletConfig) -> HttpServer:
        """Listens on the node's addresses.

        Raises: OSError when the port is in use; ssl.SSLError when the certificate does not load.
        """
        serving = config.serving
        tls = server_context(serving.certificate, serving.key, serving.client_ca)
        server = HttpServer(self.handle, self._tasks, self._clock)
        for address in config.addresses:
            await server.listen(address, config.port, tls)
        return server

    def handle(self, request: Request) -> Result:
        """One request."""
        parts = request.segments()
        if parts == ["healthz"]:
            return _say(200, "ok")
        if not request.peer_certificate:
            return _say(401, "Unauthorized")
        route = self._routes.get(parts[0]) if parts else None
        return route(request, parts[1:]) if route is not None else _say(404, "404 page not found")

    def _find(self, parts: list[str]) -> tuple[PodState, ContainerState] | Response:
        """The pod and container of ``namespace/pod[/uid]/container``."""
        state = self._pods.by_name(parts[0], parts[1]) if len(parts) >= 3 else None
        if state is None:
            return _say(404, f'pod "{"/".join(parts[:2])}" not found on this node')
        container = state.containers.get(parts[-1])
        if container is None:
            return _say(404, f'container "{parts[-1]}" not found in pod "{parts[1]}"')
        return state, container

    # -- logs

    def _logs(self, request: Request, parts: list[str]) -> Result:
        found = self._find(parts)
        if isinstance(found, Response):
            return found
        state, container = found
        try:
            wish = logs.parse_wish(request.query(), self._clock.now())
        except ValueError as failure:
            return _say(400, f"invalid log options: {failure}")
        record = container.previous if wish.previous else container.record
        if record is None:
            name, pod = container.spec.name, state.pod.metadata.name
            if wish.previous:
                return _say(400, f'previous terminated container "{name}" in pod "{pod}" not found')
            reason = container.waiting[0] or ("ContainerCreating" if state.sandbox.up else "PodInitializing")
            return _say(400, f'container "{name}" in pod "{pod}" is waiting to start: {reason}')
        path = Path(record.log)
        lines, offset = logs.read_lines(path)
        text = logs.choose(lines, wish)
        if not wish.follow or wish.previous:
            return Response(200, text, _TEXT)

        def over() -> bool:
            now = container.record
            return state.gone or now is None or now.id != record.id or now.finished

        def start(stream: Stream) -> None:
            stream.write(text)
            self._tasks.start("follow", logs.follow(path, wish, offset, over, stream, self._clock))

        return Streaming(start, 200, _TEXT)

    # -- exec, attach, port-forward

    def _upgrade(
        self, request: Request, known: tuple[str, ...], serve: Callable[[WebSocket, str], None]
    ) -> Result:  # fmt: skip
        if not is_upgrade(request):
            # kubectl takes a text with a colon in it for YAML, and then shows nothing.
            return _say(400, "WebSockets are needed for this (kubectl 1.31 or newer)")
        protocol = choose_protocol(request.headers.get("sec-websocket-protocol", ""), known)
        if not protocol:
            return _say(403, f"unable to upgrade: expected one of the subprotocols {', '.join(known)}")
        return accept(request, protocol, lambda connection: serve(connection, protocol))

    def _session(self, parts: list[str], wish: remote.Wish) -> remote.RemoteSession | Response:
        found = self._find(parts)
        if isinstance(found, Response):
            return found
        state, container = found
        if not container.running:
            return _say(500, f'container not found ("{container.spec.name}")')
        return remote.RemoteSession(state, container.spec.name, wish, self._tasks)

    def _exec(self, request: Request, parts: list[str]) -> Result:
        wish = remote.parse_wish(request.query_pairs())
        if not wish.command:
            return _say(400, "you must specify at least 1 command for the container")
        session = self._session(parts, wish)
        if isinstance(session, Response):
            return session
        return self._upgrade(
            request, remote.PROTOCOLS, lambda connection, _: self._start("exec", session.execute(connection))
        )

    def _attach(self, request: Request, parts: list[str]) -> Result:
        session = self._session(parts, remote.parse_wish(request.query_pairs()))
        if isinstance(session, Response):
            return session
        return self._upgrade(
            request, remote.PROTOCOLS, lambda connection, _: self._start("attach", session.attach(connection))
        )

    def _forward(self, request: Request, parts: list[str]) -> Result:
        state = self._pods.by_name(parts[0], parts[1]) if len(parts) >= 2 else None
        if state is None or not state.sandbox.up:
            return _say(404, f'pod "{"/".join(parts[:2])}" not found or not running on this node')
        path = state.sandbox.record.netns
        given = [value for key, value in request.query_pairs() if key in ("port", "ports")]
        ports = tuple(int(p) for value in given for p in value.split(",") if p.isdigit())

        def serve(connection: WebSocket, protocol: str) -> None:
            forwarder = forward.Forwarder(path, connection, self._tasks)
            spdy = protocol == forward.TUNNEL
            self._start("forward", forwarder.serve_spdy() if spdy else forwarder.serve_channels(ports))

        return self._upgrade(request, forward.PROTOCOLS, serve)

    def _start(self, name: str, body: object) -> None:
        self._tasks.start(name, body)  # type: ignore[arg-type]

    # -- what there is

    def _list(self) -> Response:
        items = [state.pod for state in self._pods.states]
        document = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        return Response(200, msgspec.json.encode(document))

    def _metrics(self) -> Response:
        pods = self._pods.states
        up = sum(state.sandbox.up for state in pods)
        running = sum(container.running for state in pods for container in state.containers.values())
        restarts = sum(max(0, container.attempts - 1) for state in pods for container in state.containers.values())
        lines = (
            "# HELP kubelet_running_pods Number of pods that have a running pod sandbox",
            "# TYPE kubelet_running_pods gauge", f"kubelet_running_pods {up}",
            "# HELP kubelet_running_containers Number of containers currently running",
            "# TYPE kubelet_running_containers gauge",
            f'kubelet_running_containers{{container_state="running"}} {running}',
            "# HELP podwire_container_restarts Restarts of the containers that are on the node",
            "# TYPE podwire_container_restarts gauge", f"podwire_container_restarts {restarts}",
        )  # fmt: skip
        return Response(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4; charset=utf-8")
