"""``podwire up``: brings up a cluster, applies manifests, waits until all is ready, and prints a connectivity table.

The supervisor makes the cluster. This process applies the manifests as soon as the API answers, waits for nodes and
workloads, and sends the probes. It holds the cluster's lock, so that no other run changes the cluster at the same time.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from podwire.errors import ClusterError
from podwire.kernel import network
from podwire.kernel.netlink import Netlink
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.local import credentials, inventory, launch, objects, overview, readiness, serving
from podwire.local.config import ClusterConfig, remember_config
from podwire.local.control import ControlRequest, send_request
from podwire.local.manifests import Manifest
from podwire.local.topology import Topology
from podwire.model.wording import count
from podwire.runtime.clock import Clock, SystemClock
from podwire.runtime.limits import raise_open_files

if TYPE_CHECKING:
    from podwire.local.probe.plan import Attempt
    from podwire.local.probe.result import ProbeResult

Say = Callable[[str], None]

_FEW_FILES = 1024
"""Measured: with 300 pods on 3 nodes the API server has 172 files open, a kubelet 137, an agent 37."""
_SETTLE_S = 10.0
_SETTLE_POLL_S = 0.05


class UpRequest(msgspec.Struct, frozen=True):
    """The arguments of ``podwire up``."""

    name: str
    config: ClusterConfig
    manifests: tuple[Manifest, ...]
    state: Path | None = None
    probe: bool = False
    timeout_s: float = 120.0


def run(request: UpRequest, say: Say) -> int:
    """Brings the cluster up and returns the exit status: 0, or 1 when a workload or a probe is not as expected.

    Raises: ClusterError, ConfigError.
    """
    with inventory.locked(request.name):
        topology = inventory.establish(request.name, request.config.segments, request.state, _routed_networks())
        limit = raise_open_files()
        if limit < _FEW_FILES:
            say(f"at most {limit} open files are allowed (ulimit -n); 300 pods need {_FEW_FILES}")
        launch.ensure_supervisor(topology)
        argument = msgspec.to_builtins(request.config)
        send_request(launch.control_socket(topology), ControlRequest(do="ensure", argument=argument), say)
        remember_config(topology, request.config)
        return asyncio.run(_finish(request, topology, say))


def _routed_networks() -> tuple[str, ...]:
    with Netlink() as host:
        return tuple(route.dst for route in network.read(host).routes)


async def _finish(request: UpRequest, topology: Topology, say: Say) -> int:
    clock = SystemClock()
    client = Client(load_kubeconfig(credentials.kubeconfig_path(topology, "admin")), clock, manager=objects.MANAGER)
    try:
        applied = await objects.apply(client, request.manifests)
        if applied:
            say(f"applied {count(len(applied), 'object')}")
        nodes, network = count(request.config.nodes, "node"), request.config.network != "none"
        names = tuple(node.name for node in topology.nodes(request.config.nodes))
        waiting = readiness.Waiting(client, names, applied if network else (), network=network)
        deadline = clock.monotonic() + request.timeout_s
        late = await waiting.until_ready(request.timeout_s)
        if network and not late:
            late = await serving.until_serving(topology, client, names, deadline - clock.monotonic())
        if late:
            raise ClusterError("not ready in time:\n" + "\n".join(f"  {line}" for line in late))
        if not network:
            say(f"{nodes} without a network: pods start when one is installed")
            say(overview.as_text(await overview.read_status(topology, client)))
            return 0
        workloads = count(waiting.workloads, "workload")
        say(f"{nodes} and {workloads} ready" if waiting.workloads else f"{nodes} ready")
        say(overview.as_text(await overview.read_status(topology, client)))
        if not request.probe:
            return 0
        from podwire.local.probe import result

        results = await _settled(topology, client, clock)
        say("\n" + result.overview(results))
        return 1 if any(r.surprising for r in results) else 0
    finally:
        await client.close()


async def _settled(topology: Topology, client: Client, clock: Clock) -> "tuple[ProbeResult, ...]":
    """The results of the overview; attempts with an unexpected result are planned and tried again for some seconds.

    A pod that became Ready a moment ago is an endpoint in the API and in every kernel some milliseconds later.
    """
    from podwire.local.probe import collect, plan

    good: dict[Attempt, ProbeResult] = {}
    deadline = clock.monotonic() + _SETTLE_S
    while True:
        prober, facts = await collect.prober(topology, client, clock)
        attempts = plan.overview(facts)
        results = await prober.run(tuple(result for result in attempts if result not in good))
        good |= {result.attempt: result for result in results if not result.surprising}
        surprises = {result.attempt: result for result in results if result.surprising}
        if not surprises or clock.monotonic() > deadline:
            return tuple(good.get(result) or surprises[result] for result in attempts)
        await clock.sleep(_SETTLE_POLL_S)
