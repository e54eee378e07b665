"""What the ``userspace`` data plane does, for :mod:`podwire.proxy.tracing`: rules to the relay, then its choice.

The rules are followed as they are; a packet that they lead to a port of the relay goes on as the connection that the
relay would make to an endpoint, which has the node's address as its source.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_families import FAMILIES
from podwire.proxy.dataplanes.userspace.choose import Balancer
from podwire.proxy.dataplanes.userspace.contents import Contents, pools
from podwire.proxy.dataplanes.userspace.layout import TABLE, UserspaceLayout
from podwire.proxy.dataplanes.userspace.link import RelayClient
from podwire.proxy.dataplanes.userspace.orders import RelayPool, Target
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.nft import Table
from podwire.trace import nft
from podwire.trace.packet import RELAY, Machine, Outcome, Packet, Step

_FIRST_PORT = 40000
"""Of a relay that is only planned."""


class Tracer:
    """Rules, and the relay behind them."""

    def __init__(
        self, tables: Iterable[Table], machine: Machine, relay: Mapping[str, int], made: Iterable[RelayPool]
    ) -> None:
        self._rules = nft.Tracer(tables, machine)
        self._pools = {(pool.protocol, pool.address, relay[pool.key]): pool for pool in made if pool.key in relay}
        self._balancers = {pool.key: Balancer(pool.endpoints, pool.affinity_s) for pool in self._pools.values()}

    def trace(self, packet: Packet, choices: Iterable[int] = ()) -> Outcome:
        """What happens to a packet; ``choices`` are the relay's, by the place of an endpoint, then the first."""
        led = self._rules.trace(packet)
        pool = self._pool(led)
        if pool is None:
            return led
        balancer = self._balancers[pool.key]
        target = balancer.recall(packet.source, 0.0)
        if target is None:
            target = pool.endpoints[next(iter(choices), 0) % len(pool.endpoints)]
            balancer.remember(packet.source, target, 0.0)
        return _relayed(led, pool, target, 1.0)

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        """Everything that can become of a packet; nobody is remembered for it."""
        for led in self._rules.outcomes(packet):
            pool = self._pool(led)
            if pool is None:
                yield led
                continue
            had = self._balancers[pool.key].recall(packet.source, 0.0)
            targets = pool.endpoints if had is None else (had,)
            for target in targets:
                known = () if had is None else (f"{pool.key} {{ {packet.source} : {text(had)} }}",)
                yield _relayed(led, pool, target, 1 / len(targets), known)

    def about(self, step: Step) -> str:
        """What the comment of the step's chain says; the relay's own step has none."""
        return self._rules.about(step)

    def _pool(self, led: Outcome) -> RelayPool | None:
        if led.verdict != "accept" or not led.translated:
            return None
        return self._pools.get((led.packet.protocol, led.packet.destination, led.packet.destination_port))


def text(target: Target) -> str:
    """Address and port as people write them."""
    address, port = target
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _relayed(
    led: Outcome, pool: RelayPool, target: Target, probability: float, remembered: tuple[str, ...] = ()
) -> Outcome:
    address, port = target
    step = Step(RELAY, "podwire relay", pool.key, f"connect to {text(target)}")
    return msgspec.structs.replace(
        led,
        packet=msgspec.structs.replace(led.packet, destination=address, destination_port=port),
        masqueraded=True,
        delivered=False,
        steps=(*led.steps, step),
        probability=led.probability * probability,
        remembered=(*led.remembered, *remembered),
    )


def planned(services: ServiceMap, facts: NodeFacts, machine: Machine) -> Tracer:
    """The state that would be programmed."""
    layouts = {family: UserspaceLayout(family, facts) for family in FAMILIES}
    made = tuple(
        pool
        for family, layout in layouts.items()
        for ports in ports_of_family(services, family).values()
        for pool in pools(ports, layout)
    )
    relay = {pool.key: _FIRST_PORT + number for number, pool in enumerate(made)}
    tables = []
    for family, layout in layouts.items():
        contents = Contents(layout, relay)
        contents.change(ports_of_family(services, family))
        tables.append(contents.table())
    return Tracer(tables, machine, relay, made)


def held(netns: NetnsPath, machine: Machine) -> Tracer:
    """The state that the kernel holds.

    Raises: KernelError.
    """
    link = RelayClient(netns)
    try:
        shown = link.show()
    finally:
        link.close()
    with Nft(netns) as rules:
        tables = (rules.read(family, TABLE) for family in FAMILIES)
        return Tracer([table for table in tables if table is not None], machine, shown.ports, shown.pools)
