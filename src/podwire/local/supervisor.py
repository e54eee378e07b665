"""The supervisor of one local cluster: makes the fabric, keeps the processes running, answers on a socket.

It starts as a daemon of ``podwire up``, forks the fork server, and only then starts its event loop. Bringing the
cluster up is idempotent: each step reads the present state first. When the supervisor dies, all other processes run on.
Its keeper starts a new supervisor, which adopts the processes and restores the configuration of the last complete
``up`` without a request.

Order of a start: credentials; the host's link (the API server listens on it); API server; while it begins, nodes'
namespaces and credentials; the objects that every cluster has, while the fork server imports the other components; then
the controller, agents and kubelets.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from podwire.dns.forward import read_resolv_conf
from podwire.errors import ApiUnreachable, ClusterError, Unsupported
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.local import builds, cgroup, components, credentials
from podwire.local.addons import ensure as addons
from podwire.local.builds import Build
from podwire.local.config import ClusterConfig, check_config, recall_config
from podwire.local.control import CONTROL_SOCKET, ControlRequest, ControlServer, Progress
from podwire.local.fabric import build
from podwire.local.fabric.plan import plan
from podwire.local.fabric.router import NAMES, check_installed, router_children
from podwire.local.lab import apply as lab
from podwire.local.lab.conditions import mtus
from podwire.local.lab.record import read_conditions
from podwire.local.topology import Topology
from podwire.local.upstream import UpstreamRelay
from podwire.model.wording import count
from podwire.observe.log import Log
from podwire.runtime.children import ChildEvent, Children
from podwire.runtime.clock import Clock
from podwire.runtime.forkserver import ForkServer
from podwire.runtime.program import Child
from podwire.runtime.supervise import Supervisor

_API_WAIT_S = 20.0
_API_POLL_S = 0.01


class SwapOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ``swap`` does; ``component`` empty: only adopt.

    ``build`` None: that of the supervisor. ``files`` are the component's configuration files in that build; empty:
    those of this one. ``running`` are the builds in which the components run, where none is known yet.
    """

    component: str = ""
    build: Build | None = None
    files: dict[str, str] = {}
    running: dict[str, Build] = {}


class ClusterSupervisor:
    """Owns one cluster's processes."""

    def __init__(self, topology: Topology, fork_server: ForkServer, clock: Clock, label: str = "") -> None:
        """``label`` is that of the build of this process."""
        self._topology = topology
        self._label = label
        self._builds = builds.read_components(topology)
        self._run = Path(topology.run)
        self._clock = clock
        self._log = Log("supervisor")
        self._fork_server = fork_server
        self._cgroup = cgroup.create(topology.name)
        self._tasks = Supervisor(clock, self._report)
        self._children = Children(self._run / "processes", self._start, self._tasks, clock, self._report_child)
        self._changing = asyncio.Lock()
        self._relaying = False
        self._asked = False

    async def run(self, *, resume: bool = False) -> None:
        """Serves until cancelled; ``resume``: takes over the processes of an earlier supervisor of the cluster."""
        async with self._tasks:
            self._tasks.start("control", ControlServer(self._run / CONTROL_SOCKET, self._handle).serve)
            if resume:
                self._tasks.start("resume", self._resume)

    async def _resume(self) -> None:
        """Ensures the last complete configuration; does nothing after a first request has ensured another one."""
        async with self._changing:
            config = recall_config(self._topology)
            if config is not None and not self._asked and self._builds:
                await self._adopt(config)
            elif config is not None and not self._asked:
                await self._ensure(config, lambda step: self._log.info("resuming", step=step))

    def _report(self, name: str, failure: BaseException) -> None:
        self._log.error("task failed", failure=failure, task=name)

    def _report_child(self, event: ChildEvent) -> None:
        if event.event == "adopted":
            self._log.info("adopted a running process", process=event.name, pid=event.pid)
        else:
            self._log.warning("process ended, starting it again", process=event.name, pid=event.pid)

    def _start(self, child: Child) -> int:
        pid = components.start(self._fork_server, self._topology, child, self._builds.get(child.name))
        cgroup.join(pid, cgroup.node_folder(self._cgroup, components.node_of(child)))
        return pid

    async def _handle(self, request: ControlRequest, progress: Progress) -> dict[str, Any]:
        if request.do == "swap":
            self._asked = True
            async with self._changing:
                await self._swap(msgspec.convert(request.argument, SwapOrder))
            return {}
        if request.do != "ensure":
            raise ClusterError(f"unknown request {request.do!r}")
        config = msgspec.convert(request.argument, ClusterConfig)
        check_config(config, "podwire")
        self._asked = True
        async with self._changing:
            self._builds = {}
            builds.write_components(self._topology, {})
            await self._ensure(config, progress)
        return {}

    async def _keep(self, child: Child) -> None:
        """Ensures a component, with the label of the build in which it is started."""
        await self._children.ensure(self._labelled(child))

    def _labelled(self, child: Child) -> Child:
        known = self._builds.get(child.name)
        return msgspec.structs.replace(child, version=self._label if known is None else known.label)

    async def _adopt(self, config: ClusterConfig) -> None:
        """Takes over the processes of an earlier supervisor as they are, with the configuration files that they have.

        Until the upgrade has come to them, they are started again in the build of ``builds.json``. The programs of
        routers belong to no build, and no upgrade replaces them.
        """
        self._relay()
        for child in components.every(self._topology, config, self._cgroup.parent if self._cgroup else None):
            await self._keep(components.as_configured(child))
        for child in router_children(self._topology, config.pod_cidrs, config.router.daemon):
            await self._children.ensure(components.as_configured(child))

    async def _swap(self, order: "SwapOrder") -> None:
        """Ends one component and starts it in another build, after all components were adopted."""
        config = recall_config(self._topology)
        if config is None:
            raise ClusterError("the cluster was not completely created; run `podwire up` first")
        self._builds = {**order.running, **self._builds}
        builds.write_components(self._topology, self._builds)
        await self._adopt(config)
        if not order.component:
            return
        known = components.every(self._topology, config, self._cgroup.parent if self._cgroup else None)
        child = next((child for child in known if child.name == order.component), None)
        if child is None:
            raise ClusterError(f"the cluster has no component {order.component}")
        self._builds.pop(child.name, None)
        if order.build is not None:
            self._builds[child.name] = order.build
        builds.write_components(self._topology, self._builds)
        if order.files:
            child = msgspec.structs.replace(child, files={path: text.encode() for path, text in order.files.items()})
        await self._children.replace(self._labelled(child))

    async def _ensure(self, config: ClusterConfig, progress: Progress) -> None:
        topology, now = self._topology, self._clock.now()
        check_installed(config.router.daemon, "podwire")
        port = components.api_port(topology, config, running=self._children.is_running("apiserver"))
        kubernetes = components.service_address(config, 1)
        if credentials.ensure(topology, port, (kubernetes,), now):
            progress("credentials made")
        # Nodes that will be removed stay connected until they are empty.
        size = max(config.nodes, len(build.node_names(topology)))
        conditions = read_conditions(topology, config.links)
        fabric = plan(topology, size, mtus(conditions))
        build.host(topology, fabric)
        (self._run / "resolv.conf").write_text(f"nameserver {topology.host_address}\n", encoding="ascii")
        self._relay()
        await self._keep(components.apiserver(topology, config, port))
        build.nodes(topology, fabric)
        if config.dns.kernel:
            _mount_bpf(progress)
        lab.apply(topology, size, conditions)
        await self._ensure_router(config)
        progress(f"fabric: {count(config.nodes, 'node')} on {count(topology.segment_count, 'segment')}")
        client = Client(load_kubeconfig(credentials.kubeconfig_path(topology, "admin")), self._clock)
        try:
            for node in topology.nodes(config.nodes):
                credentials.ensure_node(topology, node, now)
            await self._api_ready(client)
            progress(f"API server on https://127.0.0.1:{port}")
            dns = components.service_address(config, components.DNS_NUMBER)
            if config.network == "podwire":
                await addons.ensure(client, topology, config, dns, recall_config(topology))
            await self._keep(components.controller(topology, config))
            await self._ensure_nodes(config)
            await self._drop_nodes(client, config)
        finally:
            await client.close()

    def _relay(self) -> None:
        if not self._relaying:
            self._relaying = True
            upstreams = read_resolv_conf("/etc/resolv.conf", loopback=True)
            relay = UpstreamRelay((str(self._topology.host_address), 53), upstreams, self._clock)
            self._tasks.start("upstream", relay.serve)

    async def _ensure_router(self, config: ClusterConfig) -> None:
        """Runs the processes of the router's program, after those of another one have ended."""
        processes = router_children(self._topology, config.pod_cidrs, config.router.daemon)
        await self._children.stop(sorted(set(NAMES) - {child.name for child in processes}))
        for child in processes:
            await self._children.ensure(child)

    async def _ensure_nodes(self, config: ClusterConfig) -> None:
        pods = self._cgroup.parent if self._cgroup else None
        for node in self._topology.nodes(config.nodes):
            if config.network == "podwire":
                await self._keep(components.agent(self._topology, config, node))
            await self._keep(components.kubelet(self._topology, config, node, pods))

    async def _api_ready(self, client: Client) -> None:
        deadline = self._clock.monotonic() + _API_WAIT_S
        while True:
            try:
                answer = await client.raw("GET", "/readyz")
                if answer.status == 200:
                    return
                problem = f"/readyz says {answer.status}"
            except ApiUnreachable as failure:
                problem = str(failure)
            if self._clock.monotonic() > deadline:
                log = self._run / "log/apiserver.log"
                raise ClusterError(
                    f"the API server did not become ready in time ({problem}){_last_line(log)}; its log is {log}"
                )
            await self._clock.sleep(_API_POLL_S)

    async def _drop_nodes(self, client: Client, config: ClusterConfig) -> None:
        """Removes the nodes beyond the wanted number; their pods are replaced on other nodes."""
        names = {node.name for node in self._topology.nodes(config.nodes)}
        gone = [name for name in build.node_names(self._topology) if name not in names]
        if not gone:
            return
        from podwire.local import drain

        await drain.drain(client, [name for name in gone if self._children.is_running(f"kubelet-{name}")])
        await self._children.stop([f"{part}-{name}" for name in gone for part in ("kubelet", "agent")])
        for name in gone:
            cgroup.destroy_node(self._topology.name, name)
            drain.remove(self._topology, name)
        await drain.forget(client, gone)
        lab.rebuild(self._topology, config.nodes, read_conditions(self._topology, config.links))


def _mount_bpf(progress: Progress) -> None:
    """Makes sure that programs can be kept in the kernel; where that fails, the agents say what works without them."""
    from podwire.kernel import bpf_state

    try:
        if bpf_state.mount_file_system():
            progress(f"BPF file system mounted on {bpf_state.BPF_FILE_SYSTEM}")
    except Unsupported as missing:
        progress(str(missing))


def _last_line(log: Path) -> str:
    """The last line of a component's log, the best available reason why the component does not run."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last.removeprefix('podwire.errors.')}" if last else ""
