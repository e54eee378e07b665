"""What the modes that write a table of nftables say alike, whichever Services there are (pure).

A frontend (``address . protocol . port``, or ``protocol . port`` for a node port) is looked up in sets and maps. In
front of all stands who may come in (``guard``); behind what the mode itself has, what nobody serves is refused: TCP by
reset (not held back by the kernel's limit on ICMP errors), anything else by ICMP. A flow to a cluster address that is
tracked already began while the rules were away, and nothing translates it: what is sent again is dropped until the flow
is forgotten, and then served.
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


class Frame:
    """One family on one node."""

    def __init__(self, family: str, facts: NodeFacts) -> None:
        self.family = family
        self.facts = facts
        self.address = _ADDRESS[family]
        """The type of addresses."""
        self.pods = of_family(facts.pod_cidrs, family)
        self.frontend = f"{family} daddr . {NODE_PORT}"
        self.mark = f"0x{facts.masquerade_mark:08x}"
        self.pod, self.no_pod = "", ""
        """Matches of sources; empty where pods are not told from others."""
        if facts.pod_interface:
            self.pod, self.no_pod = (f'iifname {op}"{facts.pod_interface}"' for op in ("", "!= "))
        elif self.pods:
            self.pod, self.no_pod = (f"{family} saddr {op}@pod-cidrs" for op in ("", "!= "))
        self.outside = f"{self.no_pod} fib saddr type != local".strip()
        self.to_node = f"{family} daddr @node-addresses"
        if facts.node_port_ranges:
            self.to_node = f"fib daddr type local {family} daddr @node-port-ranges"

    def rules(self, *texts: str) -> tuple[Rule, ...]:
        """Rules from text; empty ones are left out."""
        return tuple(parse_rule(text) for text in texts if text)

    def hooked(self, name: str, kind: str, hook: str, priority: int, *texts: str) -> Chain:
        """A base chain."""
        return Chain(name=name, type=kind, hook=hook, priority=priority, rules=self.rules(*texts))

    def node_sets(self) -> tuple[Set, ...]:
        """The sets about the node and the cluster, with their elements."""
        ranges = without_loopback(self.facts.node_port_ranges, self.family)
        return (
            self._filled("node-addresses", of_family(self.facts.addresses, self.family)),
            *((self._filled("node-port-ranges", ranges, "interval"),) if self.facts.node_port_ranges else ()),
            self._filled("pod-cidrs", self.pods, "interval"),
            self._filled("service-cidrs", of_family(self.facts.service_cidrs, self.family), "interval"),
        )

    def _filled(self, name: str, values: tuple[str, ...], *flags: str) -> Set:
        declared = Set(name=name, key=(self.address,), flags=flags)
        return declared.with_elements(declared.element(value) for value in values)

    def refusing_sets(self) -> tuple[Set, ...]:
        """The sets of what is not served, or not to everybody."""
        frontend = (self.address, "inet_proto", "inet_service")
        return (
            Set(name="refused-services", key=frontend, data=("verdict",)),
            Set(name="refused-node-ports", key=frontend[1:], data=("verdict",)),
            Set(name="guarded-services", key=frontend),
            Set(name="guarded-sources", key=(*frontend, self.address), flags=("interval",)),
            Set(name="cluster-ips", key=(self.address,)),
        )

    def guards(self) -> tuple[Chain, ...]:
        """The chains of who may come in."""
        text = f"{self.frontend} @guarded-services {self.frontend} . {self.family} saddr != @guarded-sources drop"
        return (
            self.hooked("guard-prerouting", "filter", "prerouting", -110, "ct state new jump guard"),
            self.hooked("guard-output", "filter", "output", -110, "ct state new jump guard"),
            Chain(name="guard", rules=self.rules(text)),
        )

    def refusals(self) -> tuple[Chain, ...]:
        """The chains of what is not served."""
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
        """Set, key and element of what says who may come in by the frontend of a load balancer's address."""
        yield "guarded-services", frontend, Element()
        for network in admitted(port, self.facts):
            first, last = network.network_address.packed, network.broadcast_address.packed
            yield "guarded-sources", frontend + first, Element(end=frontend + last)


def filled(sets: tuple[Set, ...], contents: Mapping[str, Mapping[bytes, Element]]) -> tuple[Set, ...]:
    """The sets with elements by their names; those without any there keep their own."""
    return tuple(replace(each, elements=contents[each.name]) if contents.get(each.name) else each for each in sets)
