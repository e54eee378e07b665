"""The kubelet's composition root: fork server, API client, node, pods, HTTP server.

``serve`` forks the fork server first. So it must be called in a process of its own that is in the node's network
namespace and has neither threads nor an event loop. SIGTERM ends the kubelet and leaves the pods running; the next
kubelet adopts them. When the fork server dies, the kubelet ends with an error, so that its keeper starts it again.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from podwire.embedded.kubelet.builtin_images import ENTRIES
from podwire.embedded.kubelet.config import KubeletConfig, read_config
from podwire.embedded.kubelet.context import NodeContext
from podwire.embedded.kubelet.ledger import NodeLedger
from podwire.embedded.kubelet.mounts import machine_binds
from podwire.embedded.kubelet.network import Network
from podwire.embedded.kubelet.node import NodeKeeper
from podwire.embedded.kubelet.objects import ConfigObjects
from podwire.embedded.kubelet.pods import PodWorkers
from podwire.embedded.kubelet.resolver import parse_resolver
from podwire.embedded.kubelet.sampler import UsageSampler
from podwire.embedded.kubelet.sandbox import SHIM_ENTRY, SandboxHost
from podwire.embedded.kubelet.server import KubeletServer
from podwire.embedded.kubelet.shim import run_shim
from podwire.errors import ClusterError
from podwire.kernel import cgroup
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import PODS, SERVICES
from podwire.observe.log import Log, configure
from podwire.runtime.clock import Clock, SystemClock
from podwire.runtime.forkserver import ForkServer
from podwire.runtime.supervise import Supervisor
from podwire.runtime.tasks import TaskSet


def _shim(payload: bytes) -> None:
    run_shim(payload, ENTRIES)


def serve(config: KubeletConfig) -> None:
    """Runs a kubelet until SIGTERM.

    Raises: ConfigError, ClusterError.
    """
    configure(config.log_level)
    fork_server = ForkServer.start({SHIM_ENTRY: _shim}, title=f"podwire-forks {config.node}")
    try:
        asyncio.run(run(config, SystemClock(), fork_server))
    finally:
        fork_server.close()


def main(path: str, kubeconfig: str | None = None) -> None:
    """Runs a kubelet with the configuration in a file, for the command line and for the fork server of ``podwire up``.

    ``kubeconfig`` replaces the kubeconfig that the file names.

    Raises: ConfigError, ClusterError.
    """
    config = read_config(path)
    serve(msgspec.structs.replace(config, kubeconfig=kubeconfig) if kubeconfig else config)


def _sandbox_host(config: KubeletConfig, fork_server: ForkServer, network: Network, clock: Clock) -> SandboxHost:
    run_dir, state_dir = Path(config.run_dir), Path(config.state_dir)
    (run_dir / "root").mkdir(parents=True, exist_ok=True)
    (state_dir / "pods").mkdir(parents=True, exist_ok=True)
    hidden = (*config.hidden, config.run_dir, config.netns_dir, "/run/netns")
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return SandboxHost(
        node=config.node, domain=config.cluster_domain, addresses=config.addresses,
        run=run_dir, state=state_dir, netns=Path(config.netns_dir),
        group=cgroup.open_node(Path(config.cgroup)) if config.cgroup else None, binds=machine_binds(mountinfo, hidden),
        fork_server=fork_server, network=network, clock=clock,
    )  # fmt: skip


async def run(config: KubeletConfig, clock: Clock, fork_server: ForkServer) -> None:
    """Runs a kubelet until SIGTERM or until the fork server dies.

    Raises: ConfigError; ClusterError when the fork server died.
    """
    log = Log("kubelet")
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    forks_gone = _watch_forks(fork_server, stop)
    client = Client(load_kubeconfig(config.kubeconfig), clock, manager="kubelet")

    def report(name: str, failure: BaseException) -> None:
        log.error("failed", failure=failure, task=name)

    tasks = TaskSet(report)
    network = Network(config.cni)
    keeper = NodeKeeper(config, client, network, clock)
    host = _sandbox_host(config, fork_server, network, clock)
    services = Informer(client, SERVICES)
    pod_informer = Informer(client, PODS, field_selector=f"spec.nodeName={config.node}")
    events = EventRecorder(client, "kubelet", host=config.node)
    events.follow_rejected(services, pod_informer)
    async with Supervisor(clock, report) as supervisor:
        objects = ConfigObjects(client, supervisor, events)
        context = NodeContext(
            config=config, host=host, client=client, clock=clock, tasks=tasks, events=events,
            objects=objects, services=services,
            node_resolver=parse_resolver(_text(config.resolv_conf)), node_hosts=_text("/etc/hosts"),
            allocatable=keeper.capacity, ledger=NodeLedger(keeper.capacity),
        )  # fmt: skip
        pods = PodWorkers(pod_informer, context)
        system = Path(config.system_cgroup) if config.system_cgroup else None
        sampler = UsageSampler(pods, host, config.metrics_resolution_s, system)
        objects.changed = pods.objects_changed
        running = [
            supervisor.start("node", keeper.run),
            supervisor.start("lease", keeper.renew),
            supervisor.start("watch services", services.run),
            supervisor.start("watch pods", pod_informer.run),
            supervisor.start("events", events.run),
            supervisor.start("pods", pods.run),
            supervisor.start("usage", sampler.run),
        ]
        pages = KubeletServer(pods, tasks, clock, sampler)
        server = await pages.listen(config) if config.serving.certificate else None
        log.info("started", node=config.node)
        await stop.wait()
        if server is not None:
            await server.close()
        for task in running:
            task.cancel()
        objects.close()
        await tasks.close()
        if forks_gone():
            raise ClusterError("the kubelet's fork server has ended")
    await client.close()


def _watch_forks(fork_server: ForkServer, stop: asyncio.Event) -> Callable[[], bool]:
    gone = False

    def read() -> None:
        nonlocal gone
        if fork_server.read_exits() is None:
            gone = True
            asyncio.get_running_loop().remove_reader(fork_server.fileno())
            stop.set()

    asyncio.get_running_loop().add_reader(fork_server.fileno(), read)
    return lambda: gone


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
