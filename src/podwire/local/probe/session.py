"""One probe of a local cluster, from words to results."""

from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.local import credentials
from podwire.local.probe import collect
from podwire.local.probe.plan import ProbePort, plan
from podwire.local.probe.result import ProbeResult
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock

Words = tuple[tuple[str, ...], tuple[str, ...], tuple[ProbePort, ...]]
"""Sources, targets, ports."""


async def run(topology: Topology, words: Words, timeout_s: float) -> tuple[ProbeResult, ...]:
    """The results in the order of the plan.

    Raises: ConfigError for a word that names nothing; ApiUnreachable.
    """
    clock = SystemClock()
    client = Client(patient(load_kubeconfig(credentials.kubeconfig_path(topology, "admin"))), clock)
    try:
        prober, facts = await collect.prober(topology, client, clock, timeout_s)
        return await prober.run(plan(facts, *words))
    finally:
        await client.close()
