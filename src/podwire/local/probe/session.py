"""One probe of a local cluster, from words to results."""

from collections.abc import Callable

from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.local import credentials
from podwire.local.probe import collect
from podwire.local.probe.execute import Progress
from podwire.local.probe.plan import ProbePort, plan
from podwire.local.probe.result import ProbeResult
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock

Words = tuple[tuple[str, ...], tuple[str, ...], tuple[ProbePort, ...]]
"""Sources, targets, ports."""


async def run(
    topology: Topology, arguments: Words, timeout_s: float, begin: Callable[[int], Progress]
) -> tuple[ProbeResult, ...]:
    """The results in the order of the plan; ``begin`` gets the number of attempts and returns what shows the progress.

    Raises: ConfigError for a word that names nothing; ApiUnreachable.
    """
    clock = SystemClock()
    client = Client(patient(load_kubeconfig(credentials.kubeconfig_path(topology, "admin"))), clock)
    try:
        prober, facts = await collect.prober(topology, client, clock, timeout_s)
        attempts = plan(facts, *arguments)
        return await prober.run(attempts, begin(len(attempts)))
    finally:
        await client.close()
