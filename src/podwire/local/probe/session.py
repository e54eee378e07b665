"""One probe of a local cluster, from arguments to results and the routes that the connections take."""

from collections.abc import Callable

import msgspec

from podwire.agent.why import cluster_settings
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.local import credentials
from podwire.local.probe import collect, routes
from podwire.local.probe.execute import Progress
from podwire.local.probe.plan import ProbePort, plan
from podwire.local.probe.result import ProbeResult
from podwire.local.probe.routes import ProbeRoutes
from podwire.local.topology import Topology
from podwire.local.why import local_nodes
from podwire.runtime.clock import SystemClock
from podwire.why.kernels import NodeKernels

ProbeArguments = tuple[tuple[str, ...], tuple[str, ...], tuple[ProbePort, ...]]
"""Sources, targets, ports."""


class ProbeOutcome(msgspec.Struct, frozen=True):
    """The results in the order of the plan, and the routes between nodes of some of them."""

    results: tuple[ProbeResult, ...]
    routes: ProbeRoutes


async def run(
    topology: Topology,
    arguments: ProbeArguments,
    timeout_s: float,
    begin: Callable[[int], Progress],
    *,
    all_routes: bool = False,
) -> ProbeOutcome:
    """One probe; ``begin`` gets the number of attempts and returns what shows the progress.

    The ways are those of unexpected results, at most :data:`routes.UNEXPECTED_PAIRS`, or of all with ``all_routes``.

    Raises: ConfigError for a word that names nothing; ApiUnreachable.
    """
    clock = SystemClock()
    client = Client(patient(load_kubeconfig(credentials.kubeconfig_path(topology, "admin"))), clock)
    try:
        prober, facts = await collect.prober(topology, client, clock, timeout_s)
        attempts = plan(facts, *arguments)
        results = await prober.run(attempts, begin(len(attempts)))
        crossed = routes.pairs((result for result in results if all_routes or result.surprising), facts)
        if not all_routes:
            crossed = dict(list(crossed.items())[: routes.UNEXPECTED_PAIRS])
        if not crossed:
            return ProbeOutcome(results, ProbeRoutes())
        nodes = NodeKernels(local_nodes(topology, await cluster_settings(client)), clock)
        return ProbeOutcome(results, routes.read_routes(crossed, facts, nodes))
    finally:
        await client.close()
