"""Tracing of the ``userspace`` data plane, for :mod:`podwire.proxy.tracing`: rules to the relay, then its choice.

The rules are followed like those of mode ``nftables``. When they lead a packet to a port of the relay, the trace
continues with the connection of the relay to an endpoint, which has the node's address as its source.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft_families import FAMILIES
from podwire.proxy.dataplanes.userspace.balancer import Balancer
from podwire.proxy.dataplanes.userspace.client import RelayClient
from podwire.proxy.dataplanes.userspace.contents import Contents, pools
from podwire.proxy.dataplanes.userspace.layout import TABLE, UserspaceLayout
from podwire.proxy.dataplanes.userspace.messages import RelayPool, Target
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.nft import Table
from podwire.state.value import StateValue
from podwire.trace import nft
from podwire.trace.packet import RELAY, LocalAddresses, Outcome, Packet, TraceStep

OWNER_MARKS: Mapping[str, Any] = {"nftables": tuple((family, TABLE) for family in FAMILIES)}

_FIRST_PORT = 40000
"""The first port of a planned relay, which does not listen yet."""


class Tracer:
    """The rules, and the relay behind them."""

    def __init__(
        self,
        tables: Iterable[Table],
        machine: LocalAddresses,
        relay: Mapping[str, int],
        relay_pools: Iterable[RelayPool],
    ) -> None:
        self._rules = nft.Tracer(tables, machine)
        self._pools = {
            (pool.protocol, pool.address, relay[pool.key]): pool for pool in relay_pools if pool.key in relay
        }
        self._balancers = {pool.key: Balancer(pool.endpoints, pool.affinity_s) for pool in self._pools.values()}

    def trace(self, packet: Packet, choices: Iterable[int] = ()) -> Outcome:
        """The outcome for a packet; ``choices`` are indexes of the endpoint list, by default the first endpoint."""
        outcome = self._rules.trace(packet)
        pool = self._pool(outcome)
        if pool is None:
            return outcome
        balancer = self._balancers[pool.key]
        target = balancer.recall(packet.source, 0.0)
        if target is None:
            target = pool.endpoints[next(iter(choices), 0) % len(pool.endpoints)]
            balancer.remember(packet.source, target, 0.0)
        return _relayed(outcome, pool, target, 1.0)

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """All possible outcomes for a packet; stores no affinity."""
        for outcome in self._rules.outcomes(packet):
            pool = self._pool(outcome)
            if pool is None:
                yield outcome
                continue
            previous = self._balancers[pool.key].recall(packet.source, 0.0)
            targets = pool.endpoints if previous is None else (previous,)
            for target in targets:
                affinity = () if previous is None else (f"{pool.key} {{ {packet.source} : {text(previous)} }}",)
                yield _relayed(outcome, pool, target, 1 / len(targets), affinity)

    def about(self, step: TraceStep) -> str:
        """The comment of the step's chain; the relay's own step has none."""
        return self._rules.about(step)

    def _pool(self, outcome: Outcome) -> RelayPool | None:
        if outcome.verdict != "accept" or not outcome.translated:
            return None
        return self._pools.get((outcome.packet.protocol, outcome.packet.destination, outcome.packet.destination_port))


def text(target: Target) -> str:
    """Address and port as ``address:port``, with brackets around an IPv6 address."""
    address, port = target
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _relayed(
    outcome: Outcome, pool: RelayPool, target: Target, probability: float, remembered: tuple[str, ...] = ()
) -> Outcome:
    address, port = target
    step = TraceStep(RELAY, "podwire relay", pool.key, f"connect to {text(target)}")
    return msgspec.structs.replace(
        outcome,
        packet=msgspec.structs.replace(outcome.packet, destination=address, destination_port=port),
        masqueraded=True,
        delivered=False,
        steps=(*outcome.steps, step),
        probability=outcome.probability * probability,
        remembered=(*outcome.remembered, *remembered),
    )


def planned(services: ServiceMap, facts: NodeFacts, machine: LocalAddresses) -> Tracer:
    """A tracer for the state that the data plane would program."""
    layouts = {family: UserspaceLayout(family, facts) for family in FAMILIES}
    relay_pools = tuple(
        pool
        for family, layout in layouts.items()
        for ports in ports_of_family(services, family).values()
        for pool in pools(ports, layout)
    )
    relay = {pool.key: _FIRST_PORT + number for number, pool in enumerate(relay_pools)}
    tables = []
    for family, layout in layouts.items():
        contents = Contents(layout, relay)
        contents.change(ports_of_family(services, family))
        tables.append(contents.table())
    return Tracer(tables, machine, relay, relay_pools)


def held(values: Sequence[StateValue], netns_path: NetnsPath, machine: LocalAddresses) -> Tracer:
    """The rules that the kernel holds, and the relay's ports and endpoints as its process reports them.

    Raises: KernelError.
    """
    link = RelayClient(netns_path)
    try:
        shown = link.show()
    finally:
        link.close()
    tables = [value for value in values if isinstance(value, Table)]
    return Tracer(tables, machine, shown.ports, shown.pools)
