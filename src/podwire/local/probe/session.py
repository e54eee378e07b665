"""One probe of a local cluster, from words to results."""

from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.local import credentials
from podwire.local.probe import collect
from podwire.local.probe.plan import Port, plan
from podwire.local.probe.result import Result
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock

Words = tuple[tuple[str, ...], tuple[str, ...], tuple[Port, ...]]
"""Sources, targets, ports."""


async def run(topology: Topology, words: Words, timeout_s: float) -> tuple[Result, ...]:
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
