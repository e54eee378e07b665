"""Tries connections for :class:`podwire.testing.cluster.Cluster`, with real packets, and explains the results.

A name that cluster DNS does not know yet is tried again for :data:`DNS_S`. Connections of SCTP are made by hand where
the kernel lacks the protocol. An address outside of the cluster answers while it is tried.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from podwire.local.conformance.attempts import Trials
from podwire.local.probe import collect
from podwire.local.probe.execute import ConnectionProber
from podwire.local.probe.plan import Attempt, Expectations, PacketSource
from podwire.local.probe.result import ProbeResult
from podwire.local.topology import Topology
from podwire.runtime.clock import Clock
from podwire.testing.associations import tried
from podwire.testing.external import Outside
from podwire.testing.targets import SCTP
from podwire.why.explain import explain_connection
from podwire.why.policies.lines import Lines
from podwire.why.policy_text import at_length

DNS_S = 3.0
_POLL_S = 0.005


class ConnectionTester:
    """Tries connections between pods, nodes and hosts outside of one cluster."""

    def __init__(self, topology: Topology, clock: Clock) -> None:
        self._topology = topology
        self._clock = clock
        self._outside = Outside(topology)
        self._trials = Trials()

    async def tried(
        self, expecting: Expectations, sources: Sequence[PacketSource], attempts: list[Attempt], timeout_s: float
    ) -> tuple[ProbeResult, ...]:
        """The results of the attempts, of which there is at least one; ``sources`` are those of the attempts."""
        for source in sources:
            if source.namespace:
                self._outside.add(source.address)
        outside = [attempt for attempt in attempts if not attempt.named and _is_outside(expecting, attempt)]
        for attempt in outside:
            self._outside.add(attempt.address)
        if attempts[0].port.protocol == SCTP:
            return tuple(await asyncio.to_thread(self._associated, expecting, attempts))
        prober = collect.prober_of(self._topology, expecting.inputs, self._clock, timeout_s)
        async with self._outside.answering((a.address, a.port.number, a.port.protocol) for a in outside):
            return await self._with_names(prober, attempts)

    def _associated(self, expecting: Expectations, attempts: list[Attempt]) -> list[ProbeResult]:
        """The results of attempts of SCTP."""
        namespaces = collect.pod_namespaces(self._topology)

        def namespace_of(address: str) -> Path | None:
            pod = expecting.verdicts.party(address).pod
            return namespaces.get(pod.metadata.uid) if pod is not None else None

        return tried(self._trials, attempts, namespace_of, lambda attempt: expecting.party(attempt.source).address)

    async def _with_names(self, prober: ConnectionProber, attempts: list[Attempt]) -> tuple[ProbeResult, ...]:
        """Tries the attempts, and again while cluster DNS does not know the name of a Service that policies allow."""
        deadline = self._clock.monotonic() + DNS_S
        while True:
            results = await prober.run(attempts)
            unknown = any(r.error.startswith("no DNS answer") and not r.attempt.because for r in results)
            if not unknown or self._clock.monotonic() > deadline:
                return results
            await self._clock.sleep(_POLL_S)


def explainer(expecting: Expectations, lines: Lines) -> Callable[[ProbeResult], str]:
    """A function that explains a result: the policies and rules that decide; empty without a known connection.

    ``lines`` are the lines of the manifests.
    """
    inputs = expecting.inputs

    def explain(result: ProbeResult) -> str:
        connection = expecting.connections.get(result.attempt)
        if connection is None:
            return ""
        return "\n".join(at_length(explain_connection(inputs.world, connection, inputs.rules, lines)))

    return explain


def _is_outside(expecting: Expectations, attempt: Attempt) -> bool:
    """Whether an address belongs to no pod, node or Service, and not to this machine."""
    party = expecting.verdicts.party(attempt.address)
    inputs = expecting.inputs
    services = {ip for s in inputs.services for ip in (s.spec.cluster_ip, *s.spec.cluster_ips, *s.spec.external_ips)}
    return party.pod is None and not party.node and attempt.address not in {*services, inputs.host_address}
