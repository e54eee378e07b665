"""Which flows are stale after a change of endpoints, and how they are deleted.

The kernel keeps sending a flow to the endpoint that was chosen when the flow began, even when the rules change. A UDP
flow to a changed frontend is stale when its endpoint is not a serving endpoint of that frontend; endpoints that
terminate and still serve are serving. Flows that were not translated (they began before the Service had an endpoint)
are stale too, and so are flows to a Service that has no endpoint left or was deleted.

TCP flows are deleted only on request. Without that, a connection to a lost endpoint (its node or pod died) hangs until
a TCP time-out. After the flow is deleted, the next packet of the client is translated again, and the new endpoint, or
the reject rule when no endpoint is left, answers with a reset. A client that sends no packet does not notice. SCTP
flows are never deleted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from podwire.kernel.conntrack import Conntrack, Flow, Target
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import AF_INET, AF_INET6
from podwire.proxy.servicemap import ResolvedPort

UDP: Collection[str] = ("udp",)
Forgotten = Mapping[str, int]
"""The number of deleted flows, by ``IPv4`` and ``IPv6``."""
_FAMILIES = {AF_INET: "IPv4", AF_INET6: "IPv6"}
UDP_AND_TCP: Collection[str] = ("udp", "tcp")
_SEPARATE_LISTINGS = 12
"""Up to this many frontends, the flows of each are listed on their own; with more, listing all flows once is faster
(measured with a million flows)."""


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
        """The listings to request: one for each frontend, or one for each protocol when frontends are many."""
        if len(self.frontends) <= _SEPARATE_LISTINGS:
            return tuple((protocol, Target(address, port)) for protocol, address, port in sorted(self.frontends))
        return tuple((protocol, None) for protocol in sorted(self.protocols))

    def __call__(self, flow: Flow) -> bool:
        """Whether the flow is stale."""
        target = flow.original
        allowed = self.frontends.get((flow.protocol, target.dst, target.dport))
        if allowed is None and target.dst in self.node_addresses:
            allowed = self.frontends.get((flow.protocol, "", target.dport))
        if allowed is None:
            return False
        address, port = flow.reply.src, flow.reply.sport
        return (f"[{address}]:{port}" if ":" in address else f"{address}:{port}") not in allowed


def stale_flows(
    before: Iterable[ResolvedPort], after: Iterable[ResolvedPort], protocols: Collection[str] = UDP
) -> StaleFlows:
    """The stale flows of a change of ports; a removed frontend has no allowed endpoint.

    Frontends that lost no endpoint are left out, except UDP frontends that got their first endpoint: no flow to the
    others can be stale.
    """
    old_endpoints = _serving(port for port in before if port.protocol in protocols)
    new_endpoints = _serving(port for port in after if port.protocol in protocols)
    frontends: dict[tuple[str, str, int], frozenset[str]] = {}
    for frontend in old_endpoints.keys() | new_endpoints.keys():
        old, new = old_endpoints.get(frontend, frozenset()), new_endpoints.get(frontend, frozenset())
        if old - new or (new and not old and frontend[0] == "UDP"):
            frontends[frontend] = new
    return StaleFlows(frontends)


def _serving(ports: Iterable[ResolvedPort]) -> dict[tuple[str, str, int], frozenset[str]]:
    """Serving endpoints by protocol, address and port of their frontend; node ports have an empty address."""
    endpoints: dict[tuple[str, str, int], frozenset[str]] = {}
    for port in ports:
        protocol = port.protocol.upper()
        for address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
            endpoints[protocol, address, port.port] = frozenset(port.serving)
        if port.node_port:
            frontend = (protocol, "", port.node_port)
            endpoints[frontend] = frozenset(port.serving) | endpoints.get(frontend, frozenset())
    return endpoints


def without_relayed(
    before: tuple[ResolvedPort, ...], after: tuple[ResolvedPort, ...]
) -> tuple[tuple[ResolvedPort, ...], tuple[ResolvedPort, ...]]:
    """The change, without the ports that had serving endpoints before and have some after it.

    In mode ``userspace`` flows lead to the relay, not to endpoints, and the relay itself stops using a removed
    endpoint. So only flows to a port that lost its last endpoint, or got its first one, can be stale.
    """
    served_before = {(port.family, port.key) for port in before if port.serving}
    served = served_before & {(port.family, port.key) for port in after if port.serving}
    return (
        tuple(port for port in before if (port.family, port.key) not in served),
        tuple(port for port in after if (port.family, port.key) not in served),
    )


class Untranslated(msgspec.Struct, frozen=True):
    """Flows to addresses of Services that were not translated, because they began while rules were missing.

    The kernel keeps such a flow untranslated, so a repeated SYN or datagram does not reach an endpoint either.
    """

    frontends: frozenset[tuple[str, str, int]]
    """Protocol, address and port of the frontends that have endpoints; node ports have an empty address."""
    node_addresses: frozenset[str] = frozenset()

    def __call__(self, flow: Flow) -> bool:
        """Whether the flow is stale."""
        target = flow.original
        if (flow.reply.src, flow.reply.sport) != (target.dst, target.dport):
            return False
        at_node_port = target.dst in self.node_addresses and (flow.protocol, "", target.dport) in self.frontends
        return at_node_port or (flow.protocol, target.dst, target.dport) in self.frontends


def untranslated(ports: Iterable[ResolvedPort], node_addresses: Iterable[str] = ()) -> Untranslated:
    """The untranslated flows to ports that have endpoints; node ports answer on ``node_addresses``."""
    return Untranslated(frozenset(_serving(port for port in ports if port.serving)), frozenset(node_addresses))


class FlowCleaner(Protocol):
    """Returns, for a change of ports, a function that deletes stale flows and counts them; None: none is stale."""

    def __call__(
        self, before: tuple[ResolvedPort, ...], after: tuple[ResolvedPort, ...], *, gap: bool = False
    ) -> Callable[[], Forgotten] | None:
        """``gap``: rules were missing for a time; the rules of ``after`` are in force now."""
        ...


def _forget_untranslated(netns: NetnsPath, flows: Untranslated) -> Forgotten:
    """Deletes untranslated flows, except assured ones: another host than a Service answered them."""
    counts = dict.fromkeys(_FAMILIES.values(), 0)
    with Conntrack(netns) as conntrack:
        for protocol in sorted({protocol for protocol, _, _ in flows.frontends}):
            for flow in conntrack.forget(flows, protocol=protocol, assured=False):
                counts[_FAMILIES[flow.family]] += 1
    return counts


def flow_cleaner(
    node_addresses: Callable[[], Iterable[str]],
    netns: NetnsPath = None,
    protocols: Collection[str] = UDP,
    *,
    mode: str = "",
) -> FlowCleaner:
    """The flow cleaner of one network namespace.

    ``mode`` is the data plane in force; in mode ``userspace`` flows to the relay stay.

    For each changed frontend the kernel walks through its one hash table of all namespaces (about 5 ms; 0.4 to 1 s with
    a million flows), so a change that leaves no flow stale lists nothing. The kernel filters the listing: memory is
    used only for flows to the changed frontends.
    """

    def forget(stale: StaleFlows) -> Forgotten:
        if stale.node_ports:
            stale = StaleFlows(stale.frontends, frozenset(node_addresses()))
        counts = dict.fromkeys(_FAMILIES.values(), 0)
        with Conntrack(netns) as conntrack:
            for protocol, target in stale.listings():
                for flow in conntrack.forget(stale, protocol=protocol, target=target):
                    counts[_FAMILIES[flow.family]] += 1
        return counts

    def clean(
        before: tuple[ResolvedPort, ...], after: tuple[ResolvedPort, ...], *, gap: bool = False
    ) -> Callable[[], Forgotten] | None:
        if gap:
            flows = untranslated(after, node_addresses())
            return partial(_forget_untranslated, netns, flows) if flows.frontends else None
        if mode == "userspace":
            before, after = without_relayed(before, after)
        stale = stale_flows(before, after, protocols)
        return partial(forget, stale) if stale.frontends else None

    return clean
