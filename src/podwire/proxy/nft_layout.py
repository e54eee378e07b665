"""The constant sets and chains that the modes ``nftables`` and ``userspace`` have in common (pure).

A frontend (``address . protocol . port``, or ``protocol . port`` for a node port) is looked up in sets and maps. Chain
``guard`` checks source ranges before all other chains. After the chains of the mode itself, packets to addresses of
Services without endpoints are refused: TCP with a reset, because the kernel limits the rate of ICMP errors, but not of
resets; other protocols with an ICMP error. A packet of a tracked flow to a cluster address is dropped: the flow began
while rules were missing and is not translated. When the flow is deleted, the next packet is translated.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from podwire.proxy.frontends import admitted
from podwire.proxy.nodeports import without_loopback
from podwire.proxy.servicemap import NodeFacts, ResolvedPort, of_family
from podwire.state.nft import Chain, Element, Set
from podwire.state.nft_rules import Rule
from podwire.state.nft_text import parse_rule

NODE_PORT = "meta l4proto . th dport"


class FrontendKey(msgspec.Struct, frozen=True, gc=False):
    """A frontend as a key of sets and maps: its bytes, and whether it is a node port."""

    key: bytes
    node_port: bool

    @property
    def suffix(self) -> str:
        """The last part of the names of the sets and maps that have this key."""
        return "node-ports" if self.node_port else "services"


_ADDRESS = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}


class NftLayout:
    """The common sets and chains for one family on one node."""

    def __init__(self, family: str, facts: NodeFacts) -> None:
        self.family = family
        self.facts = facts
        self.address = _ADDRESS[family]
        """The nftables type of addresses."""
        self.pods = of_family(facts.pod_cidrs, family)
        self.frontend = f"{family} daddr . {NODE_PORT}"
        self.mark = f"0x{facts.masquerade_mark:08x}"
        self.pod, self.no_pod = "", ""
        """Matches of sources that are pods, and of other sources; empty when pods are not distinguished."""
        if facts.pod_interface:
            self.pod, self.no_pod = (f'iifname {op}"{facts.pod_interface}"' for op in ("", "!= "))
        elif self.pods:
            self.pod, self.no_pod = (f"{family} saddr {op}@pod-cidrs" for op in ("", "!= "))
        self.outside = f"{self.no_pod} fib saddr type != local".strip()
        self.to_node = f"{family} daddr @node-addresses"
        if facts.node_port_ranges:
            self.to_node = f"fib daddr type local {family} daddr @node-port-ranges"

    def rules(self, *texts: str) -> tuple[Rule, ...]:
        """Rules from texts; empty texts are left out."""
        return tuple(parse_rule(text) for text in texts if text)

    def hooked(self, name: str, kind: str, hook: str, priority: int, *texts: str) -> Chain:
        """A base chain with its rules."""
        return Chain(name=name, type=kind, hook=hook, priority=priority, rules=self.rules(*texts))

    def node_sets(self) -> tuple[Set, ...]:
        """The sets of addresses of the node and the cluster, with their elements."""
        ranges = without_loopback(self.facts.node_port_ranges, self.family)
        return (
            self._declare("node-addresses", of_family(self.facts.addresses, self.family)),
            *((self._declare("node-port-ranges", ranges, "interval"),) if self.facts.node_port_ranges else ()),
            self._declare("pod-cidrs", self.pods, "interval"),
            self._declare("service-cidrs", of_family(self.facts.service_cidrs, self.family), "interval"),
        )

    def _declare(self, name: str, values: tuple[str, ...], *flags: str) -> Set:
        declared = Set(name=name, key=(self.address,), flags=flags)
        return declared.with_elements(declared.element(value) for value in values)

    def refusing_sets(self) -> tuple[Set, ...]:
        """The sets of frontends that are refused or restricted to source ranges."""
        frontend = (self.address, "inet_proto", "inet_service")
        return (
            Set(name="refused-services", key=frontend, data=("verdict",)),
            Set(name="refused-node-ports", key=frontend[1:], data=("verdict",)),
            Set(name="guarded-services", key=frontend),
            Set(name="guarded-sources", key=(*frontend, self.address), flags=("interval",)),
            Set(name="cluster-ips", key=(self.address,)),
        )

    def guards(self) -> tuple[Chain, ...]:
        """The chains that check source ranges."""
        text = f"{self.frontend} @guarded-services {self.frontend} . {self.family} saddr != @guarded-sources drop"
        return (
            self.hooked("guard-prerouting", "filter", "prerouting", -110, "ct state new jump guard"),
            self.hooked("guard-output", "filter", "output", -110, "ct state new jump guard"),
            Chain(name="guard", rules=self.rules(text)),
        )

    def refusals(self) -> tuple[Chain, ...]:
        """The chains that refuse connections."""
        return (
            Chain(
                name="refused",
                rules=self.rules(
                    f"{self.frontend} vmap @refused-services",
                    f"{self.to_node} {NODE_PORT} vmap @refused-node-ports",
                    f"{self.family} daddr @cluster-ips goto unserved",
                    f"{self.family} daddr @service-cidrs drop",
                ),
            ),
            Chain(
                name="unserved",
                rules=self.rules(f"{self.family} daddr @service-cidrs ct status confirmed drop", "goto refuse"),
            ),
            Chain(name="refuse", rules=self.rules("reject with tcp reset", "reject")),
        )

    def guarded(self, port: ResolvedPort, frontend: bytes) -> Iterator[tuple[str, bytes, Element]]:
        """Set, key and element of the source ranges for a frontend with an address of a load balancer."""
        yield "guarded-services", frontend, Element()
        for network in admitted(port, self.facts):
            first, last = network.network_address.packed, network.broadcast_address.packed
            yield "guarded-sources", frontend + first, Element(end=frontend + last)


def with_contents(sets: tuple[Set, ...], contents: Mapping[str, Mapping[bytes, Element]]) -> tuple[Set, ...]:
    """The sets with ``contents``, elements by the name of their set; other sets keep their own elements."""
    return tuple(replace(s, elements=contents[s.name]) if contents.get(s.name) else s for s in sets)
