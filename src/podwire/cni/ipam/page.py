"""The page ``/ipam`` of an agent: its ranges and the addresses that it holds, one JSON object a line."""

from collections.abc import Iterator, Mapping

import msgspec

from podwire.cluster.ipamreport import AgentLine, HeldAddress, HeldRange
from podwire.cni.ipam.leases import Leases


def page(leases: Leases, _query: Mapping[str, list[str]]) -> Iterator[str]:
    """The lines, all of the moment of the request."""
    return iter([msgspec.json.encode(line).decode() for line in _lines(leases)])


def _lines(leases: Leases) -> Iterator[AgentLine]:
    usage = leases.usages()
    for pool in leases.all_pools:
        numbers = usage(pool.network)
        yield HeldRange(
            cidr=str(pool.network),
            size=pool.size,
            held=numbers.held,
            cooling=numbers.cooling,
            lent=numbers.away,
            closed=pool.network in leases.closed,
        )
    for attachment in (*leases.held.values(), *leases.lent.values()):
        for address in attachment.addresses:
            yield HeldAddress(
                address=address,
                pod=f"{attachment.namespace}/{attachment.pod}" if attachment.pod else "",
                uid=attachment.uid,
                container=attachment.key.container,
                interface=attachment.key.ifname,
            )
