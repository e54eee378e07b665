"""Which UDP flows lead nowhere after a change of endpoints, and their removal.

The kernel goes on sending a UDP flow to the endpoint it was translated to, whatever the rules say now. A flow to a
changed frontend is stale when what answers it is not a serving endpoint of that frontend; terminating endpoints that
serve still count. Flows that were not translated at all (sent before the Service had an endpoint) are stale too, and
so are those of a Service that has no endpoint left or is gone. TCP and SCTP are never touched.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from podwire.kernel.conntrack import Conntrack, Flow
from podwire.proxy.servicemap import ServicePort


class StaleFlows(msgspec.Struct, frozen=True):
    """Serving endpoints by frontend: (address, port) or, for node ports, port."""

    frontends: Mapping[tuple[str, int], frozenset[str]]
    node_ports: Mapping[int, frozenset[str]]
    node_addresses: frozenset[str]

    def __call__(self, flow: Flow) -> bool:
        """Whether the flow leads nowhere."""
        if flow.protocol != "UDP":
            return False
        target = flow.original
        allowed = self.frontends.get((target.dst, target.dport))
        if allowed is None and target.dst in self.node_addresses:
            allowed = self.node_ports.get(target.dport)
        if allowed is None:
            return False
        address, port = flow.reply.src, flow.reply.sport
        return (f"[{address}]:{port}" if ":" in address else f"{address}:{port}") not in allowed


def stale_flows(
    before: Iterable[ServicePort], after: Iterable[ServicePort], node_addresses: Iterable[str]
) -> StaleFlows:
    """The rule for a change of UDP ports; frontends that are gone allow nothing.

    Left out are frontends that lost no endpoint and did not get their first: no flow to them can be stale.
    """
    had, have = _serving(before), _serving(after)
    frontends: dict[tuple[str, int], frozenset[str]] = {}
    node_ports: dict[int, frozenset[str]] = {}
    for front in had.keys() | have.keys():
        old, new = had.get(front, frozenset()), have.get(front, frozenset())
        if old - new or (new and not old):
            address, port = front
            if address:
                frontends[address, port] = new
            else:
                node_ports[port] = new
    return StaleFlows(frontends, node_ports, frozenset(node_addresses))


def _serving(ports: Iterable[ServicePort]) -> dict[tuple[str, int], frozenset[str]]:
    """Serving endpoints by address and port, those of node ports by an empty address."""
    found: dict[tuple[str, int], frozenset[str]] = {}
    for port in ports:
        for address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
            found[address, port.port] = frozenset(port.serving)
        if port.node_port:
            found["", port.node_port] = frozenset(port.serving) | found.get(("", port.node_port), frozenset())
    return found


def flow_cleaner(
    node_addresses: Callable[[], Iterable[str]], netns: Path | str | None = None
) -> Callable[[tuple[ServicePort, ...], tuple[ServicePort, ...]], int]:
    """A function that forgets the stale flows of a change in a network namespace, and says how many.

    Listing costs 1.5 us for each flow of the namespace, and a walk through the kernel's one hash table for all
    namespaces (some 5 ms), so a change that leaves no flow stale does not list.
    """

    def clean(before: tuple[ServicePort, ...], after: tuple[ServicePort, ...]) -> int:
        stale = stale_flows(before, after, node_addresses())
        if not stale.frontends and not stale.node_ports:
            return 0
        with Conntrack(netns) as conntrack:
            return conntrack.forget(stale, protocol="UDP")

    return clean
