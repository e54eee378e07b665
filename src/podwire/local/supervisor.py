"""The supervisor of one local cluster: makes the fabric, keeps the processes running, answers on a socket.

It starts as a daemon of ``podwire up``, from a process that has imported every component, forks the fork server, and
only then has an event loop. Bringing the cluster up is idempotent: each step looks at what is there. When the
supervisor dies, everything else runs on; the next ``up`` starts a new one, which adopts what it finds.

Order of a start, with what each step waits for: credentials; the host's link (the API server listens on it); API
server; then, at the same time, the nodes' namespaces and the objects that every cluster has; controller; agents and
kubelets; all nodes Ready.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ApiUnreachable, ClusterError
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.informer import Informer
from podwire.kube.resources import NODES
from podwire.local import addons, cgroup, components, credentials
from podwire.local.config import ClusterConfig, check_config
from podwire.local.control import Ask, ControlServer, Progress
from podwire.local.fabric import build
from podwire.local.fabric.plan import plan
from podwire.local.layout import Layout
from podwire.local.processes import Processes
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.forkserver import ForkServer
from podwire.runtime.supervise import Supervisor

CONTROL_SOCKET = "control.sock"
_API_WAIT_S = 20.0
_NODES_WAIT_S = 60.0
_CONFIG = "cluster.json"


class ClusterSupervisor:
    """Owns one cluster's processes."""

    def __init__(self, layout: Layout, fork_server: ForkServer, clock: Clock) -> None:
        self._layout = layout
        self._run = Path(layout.run)
        self._clock = clock
        self._log = Log("supervisor")
        records = self._run / "processes"
        records.mkdir(parents=True, exist_ok=True)
        self._processes = Processes(fork_server, records, cgroup.create(layout.name), clock)
        self._tasks = Supervisor(clock, self._report)
        self._changing = asyncio.Lock()
        self._config: ClusterConfig | None = None

    async def run(self) -> None:
        """Serves until cancelled."""
        async with self._tasks:
            self._tasks.start("control", ControlServer(self._run / CONTROL_SOCKET, self._handle).serve)

    def _report(self, name: str, failure: BaseException) -> None:
        self._log.error("task failed", failure=failure, task=name)

    async def _handle(self, ask: Ask, progress: Progress) -> dict[str, Any]:
        match ask.do:
            case "ensure":
                config = msgspec.convert(ask.argument, ClusterConfig)
                check_config(config, "podwire")
                async with self._changing:
                    return await self._ensure(config, progress)
            case "processes":
                return {"processes": self._processes.pids()}
            case _:
                raise ClusterError(f"unknown request {ask.do!r}")

    async def _ensure(self, config: ClusterConfig, progress: Progress) -> dict[str, Any]:
        layout = self._layout
        port = components.api_port(layout, config)
        created = credentials.ensure(layout, config, port)
        if created:
            progress("credentials")
        fabric = plan(layout, config.nodes)
        build.host(layout, fabric)
        self._keep(components.apiserver(layout, config, port))
        build.nodes(layout, fabric)
        progress(f"fabric: {layout.segment_count} segment(s), {config.nodes} node(s)")
        async with self._client() as client:
            await self._api_ready(client)
            progress(f"API server on https://127.0.0.1:{port}")
            await addons.ensure(client, layout, config)
            self._keep(components.controller(layout, config))
            for place in layout.nodes(config.nodes):
                self._keep(components.agent(layout, config, place))
                self._keep(components.kubelet(layout, config, place))
            await self._drop_nodes(client, config)
            await self._nodes_ready(client, config.nodes, progress)
        self._config = config
        (self._run / _CONFIG).write_bytes(msgspec.json.encode(config))
        return {"kubeconfig": str(credentials.kubeconfig(layout, "admin"))}
