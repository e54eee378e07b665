"""Which flows lead nowhere after a change of endpoints, and their removal.

The kernel goes on sending a flow to the endpoint it was translated to, whatever the rules say now. A UDP flow to a
changed frontend is stale when what answers it is not a serving endpoint of that frontend; terminating endpoints that
serve still count. Flows that were not translated at all (sent before the Service had an endpoint) are stale too, and
so are those of a Service that has no endpoint left or is gone.

TCP is touched only on request: a connection to an endpoint that is gone (its node died, its pod was removed without a
word) would otherwise hang until its own time-outs. Once the kernel has forgotten it, the client's next packet is
translated anew, and the endpoint that gets it, or the rule that refuses where none is left, answers with a reset. A
client that sends nothing learns nothing. SCTP is never touched.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from podwire.kernel.conntrack import Conntrack, Flow, Target
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import AF_INET, AF_INET6
from podwire.proxy.servicemap import ServicePort

UDP: Collection[str] = ("udp",)
Forgotten = Mapping[str, int]
"""How many flows, by ``IPv4`` and ``IPv6``."""
_FAMILIES = {AF_INET: "IPv4", AF_INET6: "IPv6"}
UDP_AND_TCP: Collection[str] = ("udp", "tcp")
_APART = 12
"""Frontends that are asked for one by one; the kernel's walk through a million entries for each takes as long as to
list them all when there are about so many."""


class StaleFlows(msgspec.Struct, frozen=True):
    """Serving endpoints by frontend: (protocol, address, port), for node ports with an empty address."""

    frontends: Mapping[tuple[str, str, int], frozenset[str]]
    node_addresses: frozenset[str] = frozenset()

    @property
    def protocols(self) -> frozenset[str]:
        """The protocols of the frontends, as connection tracking names them."""
        return frozenset(protocol for protocol, _, _ in self.frontends)

    @property
    def node_ports(self) -> bool:
        """Whether any frontend is a node port."""
        return any(not address for _, address, _ in self.frontends)

    def listings(self) -> tuple[tuple[str, Target | None], ...]:
        """What to ask the kernel for: the flows to each frontend, or all of each protocol when those are many."""
        if len(self.frontends) <= _APART:
            return tuple((protocol, Target(address, port)) for protocol, address, port in sorted(self.frontends))
        return tuple((protocol, None) for protocol in sorted(self.protocols))

    def __call__(self, flow: Flow) -> bool:
        """Whether the flow leads nowhere."""
        target = flow.original
        allowed = self.frontends.get((flow.protocol, target.dst, target.dport))
        if allowed is None and target.dst in self.node_addresses:
            allowed = self.frontends.get((flow.protocol, "", target.dport))
        if allowed is None:
            return False
        address, port = flow.reply.src, flow.reply.sport
        return (f"[{address}]:{port}" if ":" in address else f"{address}:{port}") not in allowed


def stale_flows(
    before: Iterable[ServicePort], after: Iterable[ServicePort], protocols: Collection[str] = UDP
) -> StaleFlows:
    """The rule for a change of ports; frontends that are gone allow nothing.

    Left out are frontends that lost no endpoint and did not get their first (which matters to UDP alone): no flow to
    them can be stale.
    """
    had = _serving(port for port in before if port.protocol in protocols)
    have = _serving(port for port in after if port.protocol in protocols)
    frontends: dict[tuple[str, str, int], frozenset[str]] = {}
    for front in had.keys() | have.keys():
        old, new = had.get(front, frozenset()), have.get(front, frozenset())
        if old - new or (new and not old and front[0] == "UDP"):
            frontends[front] = new
    return StaleFlows(frontends)


def _serving(ports: Iterable[ServicePort]) -> dict[tuple[str, str, int], frozenset[str]]:
    """Serving endpoints by protocol, address and port, those of node ports by an empty address."""
    found: dict[tuple[str, str, int], frozenset[str]] = {}
    for port in ports:
        protocol = port.protocol.upper()
        for address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
            found[protocol, address, port.port] = frozenset(port.serving)
        if port.node_port:
            front = (protocol, "", port.node_port)
            found[front] = frozenset(port.serving) | found.get(front, frozenset())
    return found


def left_to_a_relay(
    before: tuple[ServicePort, ...], after: tuple[ServicePort, ...]
) -> tuple[tuple[ServicePort, ...], tuple[ServicePort, ...]]:
    """A change without the ports that were served and still are.

    Where a relay answers (mode ``userspace``), no flow leads to an endpoint, and the relay itself leaves one that is
    gone: only flows of a port that lost its last endpoint, or got its first, are in the wrong place.
    """
    had = {(port.family, port.key) for port in before if port.serving}
    served = had & {(port.family, port.key) for port in after if port.serving}
    return (
        tuple(port for port in before if (port.family, port.key) not in served),
        tuple(port for port in after if (port.family, port.key) not in served),
    )


class Untranslated(msgspec.Struct, frozen=True):
    """Flows to cluster addresses that nobody translated, since they began while the rules were away.

    The kernel keeps such a flow as it is, so that a SYN or a datagram that is sent again goes nowhere too.
    """

    frontends: frozenset[tuple[str, str, int]]
    """Protocol, address and port of those that have endpoints."""

    def __call__(self, flow: Flow) -> bool:
        """Whether the flow leads nowhere."""
        target = flow.original
        return flow.reply.src == target.dst and (flow.protocol, target.dst, target.dport) in self.frontends


def untranslated(ports: Iterable[ServicePort]) -> Untranslated:
    """The rule for ports that are served again."""
    served = (port for port in ports if port.serving)
    return Untranslated(frozenset((port.protocol.upper(), port.cluster_ip, port.port) for port in served))


class FlowCleaner(Protocol):
    """From a change of ports to what forgets flows that lead nowhere, and says how many; None: there can be none."""

    def __call__(
        self, before: tuple[ServicePort, ...], after: tuple[ServicePort, ...], *, gap: bool = False
    ) -> Callable[[], Forgotten] | None:
        """``gap`` says that the rules were away, and are those of ``after`` now."""
        ...


def _forget_untranslated(netns: NetnsPath, lost: Untranslated) -> Forgotten:
    """Nobody answers at an address of a Service itself, so what is established is left out by the kernel."""
    found = dict.fromkeys(_FAMILIES.values(), 0)
    with Conntrack(netns) as conntrack:
        for protocol in sorted({protocol for protocol, _, _ in lost.frontends}):
            for flow in conntrack.forget(lost, protocol=protocol, assured=False):
                found[_FAMILIES[flow.family]] += 1
    return found


def flow_cleaner(
    node_addresses: Callable[[], Iterable[str]],
    netns: NetnsPath = None,
    protocols: Collection[str] = UDP,
    *,
    mode: str = "",
) -> FlowCleaner:
    """A function from a change to what forgets its stale flows (and says how many), None where there can be none.

    ``mode`` is the one in force: in mode ``userspace`` a relay answers, which is left what is its own.

    A change costs a walk of the kernel's through its one hash table for all namespaces (some 5 ms, and 0.4 to 1 s with
    a million flows) for each frontend, so a change that leaves no flow stale does not list. What is sent elsewhere is
    left out by the kernel: the memory taken is that of the flows to the frontends that changed.
    """

    def forget(stale: StaleFlows) -> Forgotten:
        if stale.node_ports:
            stale = StaleFlows(stale.frontends, frozenset(node_addresses()))
        found = dict.fromkeys(_FAMILIES.values(), 0)
        with Conntrack(netns) as conntrack:
            for protocol, target in stale.listings():
                for flow in conntrack.forget(stale, protocol=protocol, target=target):
                    found[_FAMILIES[flow.family]] += 1
        return found

    def clean(
        before: tuple[ServicePort, ...], after: tuple[ServicePort, ...], *, gap: bool = False
    ) -> Callable[[], Forgotten] | None:
        if gap:
            lost = untranslated(after)
            return partial(_forget_untranslated, netns, lost) if lost.frontends else None
        if mode == "userspace":
            before, after = left_to_a_relay(before, after)
        stale = stale_flows(before, after, protocols)
        return partial(forget, stale) if stale.frontends else None

    return clean
