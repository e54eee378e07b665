"""One probe of a local cluster, from arguments to results and the routes that the connections take."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.local import credentials
from podwire.local.probe import collect
from podwire.local.probe.execute import Progress
from podwire.local.probe.plan import ProbeInputs, ProbePort, plan
from podwire.local.probe.result import ProbeResult
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock

if TYPE_CHECKING:
    from podwire.local.probe.routes import ProbeRoutes

ProbeArguments = tuple[tuple[str, ...], tuple[str, ...], tuple[ProbePort, ...]]
"""Sources, targets, ports."""


class ProbeOutcome(msgspec.Struct, frozen=True):
    """The results in the order of the plan, and the routes between nodes of some of them; None without any."""

    results: tuple[ProbeResult, ...]
    routes: "ProbeRoutes | None" = None


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
        explained = [result for result in results if all_routes or result.surprising]
        if not explained:
            return ProbeOutcome(results)
        return ProbeOutcome(results, await _routes(topology, client, facts, explained, most=not all_routes))
    finally:
        await client.close()


async def _routes(
    topology: Topology, client: Client, facts: ProbeInputs, results: Sequence[ProbeResult], *, most: bool
) -> "ProbeRoutes":
    """The routes of connections; ``most``: at most :data:`routes.UNEXPECTED_PAIRS` of them."""
    from podwire.agent.why import cluster_settings
    from podwire.local.probe import routes
    from podwire.local.why import local_nodes
    from podwire.why.kernels import NodeKernels

    crossed = routes.pairs(results, facts)
    if most:
        crossed = dict(list(crossed.items())[: routes.UNEXPECTED_PAIRS])
    if not crossed:
        return routes.ProbeRoutes()
    nodes = NodeKernels(local_nodes(topology, await cluster_settings(client)), client.clock)
    return routes.read_routes(crossed, facts, nodes)
