"""The kubelet's HTTP server: logs, exec, attach, port-forward, pods, health, metrics, usage.

Clients need a certificate of the cluster's authority for every path except ``/healthz``. The API server forwards
``pods/log``, ``pods/exec``, ``pods/attach`` and ``pods/portforward`` to this server. Paths as in kubernetes
pkg/kubelet/server/server.go; ``/usage`` is podwire's own, for the API group metrics.k8s.io.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from podwire.embedded.kubelet import forward, logs, remote
from podwire.embedded.kubelet.channels import Channels
from podwire.embedded.kubelet.config import KubeletConfig
from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.nodelogs import answer_logs, log_files
from podwire.embedded.kubelet.podconnect import connect_pod
from podwire.embedded.kubelet.pods import PodWorkers
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.sampler import UsageSampler
from podwire.embedded.metrics.pages import render_cadvisor, render_resource, render_summary
from podwire.http.answer import Result, Stream, Streaming
from podwire.http.handshake import accept, choose_protocol, is_upgrade
from podwire.http.message import METRICS_TEXT, TEXT, Request, Response, text_response
from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from podwire.http.websocket import WebSocket


class KubeletServer:
    """Routes requests to the node's pods."""

    def __init__(self, pods: PodWorkers, tasks: TaskSet, clock: Clock, sampler: UsageSampler) -> None:
        self._pods = pods
        self._tasks = tasks
        self._clock = clock
        self._sampler = sampler
        self._routes: dict[str, Callable[[Request, list[str]], Result | Awaitable[Result]]] = {
            "containerLogs": self._logs,
            "exec": self._exec,
            "attach": self._attach,
            "portForward": self._forward,
            "podConnect": self._connect,
            "logs": lambda request, segments: answer_logs(request, segments, log_files(self._pods.states)),
            "pods": lambda request, segments: self._list(),
            "metrics": lambda request, segments: self._metrics(segments),
            "stats": lambda request, segments: self._stats(segments),
            "usage": lambda request, segments: Response(200, msgspec.json.encode(self._sampler.report())),
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

    def handle(self, request: Request) -> Result | Awaitable[Result]:
        """The answer to one request."""
        segments = request.segments()
        if segments == ["healthz"]:
            return text_response(200, "ok")
        if not request.peer_certificate:
            return text_response(401, "Unauthorized")
        route = self._routes.get(segments[0]) if segments else None
        return route(request, segments[1:]) if route is not None else text_response(404, "404 page not found")

    def _find(self, segments: list[str]) -> tuple[PodState, ContainerState] | Response:
        """The pod and container of ``namespace/pod[/uid]/container``."""
        state = self._pods.by_name(segments[0], segments[1]) if len(segments) >= 3 else None
        if state is None:
            return text_response(404, f'pod "{"/".join(segments[:2])}" not found on this node')
        container = state.containers.get(segments[-1])
        if container is None:
            return text_response(404, f'container "{segments[-1]}" not found in pod "{segments[1]}"')
        return state, container

    # -- logs

    def _logs(self, request: Request, segments: list[str]) -> Result:
        match = self._find(segments)
        if isinstance(match, Response):
            return match
        state, container = match
        try:
            query = logs.parse_query(request.query(), self._clock.now())
        except ValueError as failure:
            return text_response(400, f"invalid log options: {failure}")
        record = container.previous if query.previous else container.record
        if record is None:
            name, pod = container.spec.name, state.pod.metadata.name
            if query.previous:
                return text_response(400, f'previous terminated container "{name}" in pod "{pod}" not found')
            turn = "PodInitializing" if state.pod.spec.init_containers else "ContainerCreating"
            reason = container.waiting[0] or turn
            return text_response(400, f'container "{name}" in pod "{pod}" is waiting to start: {reason}')
        path = Path(record.log)
        lines, offset = logs.read_lines(path)
        text = logs.choose(lines, query)
        if not query.follow or query.previous:
            return Response(200, text, TEXT)

        def run_ended() -> bool:
            now = container.record
            return state.gone or now is None or now.id != record.id or now.finished

        def start(stream: Stream) -> None:
            stream.write(text)
            self._tasks.start("follow", logs.follow(path, query, offset, run_ended, stream, self._clock))

        return Streaming(start, 200, TEXT)

    # -- exec, attach, port-forward

    def _upgrade(
        self, request: Request, known: tuple[str, ...], serve: Callable[["WebSocket", str], None]
    ) -> Result:  # fmt: skip
        if not is_upgrade(request):
            # kubectl parses a text with a colon as YAML and then prints no message at all.
            return text_response(400, "exec, attach and port-forward need WebSockets (kubectl 1.31 or newer)")
        protocol = choose_protocol(request.headers.get("sec-websocket-protocol", ""), known)
        if protocol is None:
            return text_response(
                403, f"unable to upgrade: expected one of the subprotocols {', '.join(filter(None, known))}"
            )
        return accept(request, protocol, lambda connection: serve(connection, protocol))

    def _session(
        self, segments: list[str], request: Request, serve: Callable[[remote.RemoteSession, Channels], None],
        *, command: bool,
    ) -> Result:  # fmt: skip
        """Starts a session in a running container; ``command``: the client must name a command."""
        try:
            options = remote.parse_options(request.query_pairs())
        except ValueError as failure:
            return text_response(400, str(failure))
        if command and not options.command:
            return text_response(400, "you must specify at least 1 command for the container")
        match = self._find(segments)
        if isinstance(match, Response):
            return match
        state, container = match
        if not container.running:
            return text_response(500, f'container not found ("{container.spec.name}")')
        session = remote.RemoteSession(state, container.spec.name, options, self._tasks)
        return self._upgrade(
            request, remote.PROTOCOLS, lambda connection, protocol: serve(session, Channels(connection, protocol))
        )

    def _exec(self, request: Request, segments: list[str]) -> Result:
        def serve(session: remote.RemoteSession, channels: Channels) -> None:
            self._start("exec", session.execute(channels))

        return self._session(segments, request, serve, command=True)

    def _attach(self, request: Request, segments: list[str]) -> Result:
        def serve(session: remote.RemoteSession, channels: Channels) -> None:
            self._start("attach", session.attach(channels))

        return self._session(segments, request, serve, command=False)

    def _forward(self, request: Request, segments: list[str]) -> Result:
        state = self._pods.by_name(segments[0], segments[1]) if len(segments) >= 2 else None
        if state is None or not state.sandbox.up:
            return text_response(404, f'pod "{"/".join(segments[:2])}" not found or not running on this node')
        path = state.sandbox.record.netns
        values = [value for key, value in request.query_pairs() if key in ("port", "ports")]
        ports = tuple(int(p) for value in values for p in value.split(",") if p.isdigit())

        def serve(connection: "WebSocket", protocol: str) -> None:
            forwarder = forward.PortForwarder(path, connection, self._tasks)
            if protocol == forward.TUNNEL:
                self._start("forward", forwarder.serve_spdy())
            else:
                self._start("forward", forwarder.serve_channels(Channels(connection, protocol), ports))

        return self._upgrade(request, forward.PROTOCOLS, serve)

    def _connect(self, request: Request, segments: list[str]) -> Result | Awaitable[Result]:
        state = self._pods.by_name(segments[0], segments[1]) if len(segments) == 2 else None
        if state is None or not state.sandbox.up:
            return text_response(404, f'pod "{"/".join(segments[:2])}" not found or not running on this node')
        return connect_pod(request, state.sandbox.record.netns, state.sandbox.record.ips)

    def _start(self, name: str, body: object) -> None:
        self._tasks.start(name, body)  # type: ignore[arg-type]

    # -- pods and metrics

    def _list(self) -> Response:
        items = [state.pod for state in self._pods.states]
        document = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        return Response(200, msgspec.json.encode(document))

    def _stats(self, segments: list[str]) -> Response:
        if segments != ["summary"]:
            return text_response(404, "404 page not found")
        return Response(200, msgspec.json.encode(render_summary(self._sampler.report())))

    def _metrics(self, segments: list[str]) -> Response:
        if segments == ["resource"]:
            return Response(200, render_resource(self._sampler.report()), METRICS_TEXT)
        if segments == ["cadvisor"]:
            return Response(200, render_cadvisor(self._sampler.report()), METRICS_TEXT)
        if segments:
            return text_response(404, "404 page not found")
        return Response(200, self._own_metrics(), METRICS_TEXT)

    def _own_metrics(self) -> bytes:
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
        return ("\n".join(lines) + "\n").encode()
