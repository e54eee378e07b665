"""The constant part of the table that leads to the relay: sets, chains and rules that depend on no Service (pure).

A frontend (``address . protocol . port``, or ``protocol . port`` for a node port) maps to the address and port where
the relay listens for it, and that is all: who serves is the relay's choice. Local frontends stand twice, for sources
outside (``local-services``: to the pool of this node's endpoints) and for everyone else (``services``: to all).

Why not ``redirect``: it translates to an address of the device that a packet came in by, and drops the packet where
the device has none, as those of pods. So the relay listens on the node's address, and the rules name it.

What reaches a relay's port without having been translated (somebody guessed it) is refused: policies and source ranges
stand before the translation. Connections of the relay carry the mark of the proxy, and are not led to the relay again
when an endpoint has the address of a Service. Priorities are those of kube-proxy's documented interface.
"""

from collections.abc import Mapping
from ipaddress import collapse_addresses, ip_network
from typing import Any

import msgspec

from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule
from podwire.state.nft_text import parse_rule

TABLE = "podwire-userspace"

_ADDRESS = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}


class Layout:
    """The constant part for one family on one node."""

    def __init__(self, family: str, facts: NodeFacts) -> None:
        self.family = family
        self.facts = facts
        self.address = _ADDRESS[family]
        self.pods = of_family(facts.pod_cidrs, family)
        self._no_pod = f'iifname != "{facts.pod_interface}"' if facts.pod_interface else ""
        if not self._no_pod and self.pods:
            self._no_pod = f"{family} saddr != @pod-cidrs"
        self._to_node = f"{family} daddr @node-addresses"
        if facts.node_port_ranges:
            self._to_node = f"fib daddr type local {family} daddr @node-port-ranges"
        self._mark = f"0x{facts.masquerade_mark:08x}"
        self._frontend = f"{family} daddr . meta l4proto . th dport"

    @property
    def relay_address(self) -> str:
        """Where the relay listens: the first address of the node, empty when it has none of this family."""
        return next(iter(of_family(self.facts.addresses, self.family)), "")

    def rules(self, *texts: str) -> tuple[Rule, ...]:
        """Rules from text."""
        return tuple(parse_rule(text) for text in texts)

    def sets(self) -> tuple[Set, ...]:
        """Declarations of all sets and maps, those known from the node's facts with their elements."""
        address = self.address
        frontend = (address, "inet_proto", "inet_service")
        node_port = ("inet_proto", "inet_service")
        target = (address, "inet_service")
        verdict = ("verdict",)
        return (
            Set(name="services", key=frontend, data=target),
            Set(name="local-services", key=frontend, data=target),
            Set(name="node-ports", key=node_port, data=target),
            Set(name="local-node-ports", key=node_port, data=target),
            Set(name="not-local-services", key=frontend),
            Set(name="not-local-node-ports", key=node_port),
            Set(name="refused-services", key=frontend, data=verdict),
            Set(name="refused-node-ports", key=node_port, data=verdict),
            Set(name="guarded-services", key=frontend),
            Set(name="guarded-sources", key=(*frontend, address), flags=("interval",)),
            Set(name="cluster-ips", key=(address,)),
            Set(name="relay", key=frontend),
            self._filled("node-addresses", of_family(self.facts.addresses, self.family), ()),
            *self._node_port_ranges(),
            self._filled("pod-cidrs", self.pods, ("interval",)),
            self._filled("service-cidrs", of_family(self.facts.service_cidrs, self.family), ("interval",)),
        )

    def _node_port_ranges(self) -> tuple[Set, ...]:
        """The ranges without loopback, which the kernel would not translate from."""
        if not self.facts.node_port_ranges:
            return ()
        loopback = ip_network("::1/128" if self.family == "ip6" else "127.0.0.0/8")
        ranges: list[Any] = []
        for text in of_family(self.facts.node_port_ranges, self.family):
            network: Any = ip_network(text)
            ranges.extend(network.address_exclude(loopback) if loopback.subnet_of(network) else (network,))
        rest = (str(network) for network in collapse_addresses(ranges) if not network.subnet_of(loopback))
        return (self._filled("node-port-ranges", tuple(rest), ("interval",)),)

    def _filled(self, name: str, values: tuple[str, ...], flags: tuple[str, ...]) -> Set:
        declared = Set(name=name, key=(self.address,), flags=flags)
        return declared.with_elements(declared.element(value) for value in values)

    def chains(self) -> tuple[Chain, ...]:
        """All chains."""
        own = f"meta mark & {self._mark} == {self._mark} return"
        return (
            self._hooked("guard-prerouting", "filter", "prerouting", -110, "ct state new jump guard"),
            self._hooked("guard-output", "filter", "output", -110, "ct state new jump guard"),
            self._hooked("nat-prerouting", "nat", "prerouting", -100, "jump dispatch"),
            self._hooked("nat-output", "nat", "output", -100, own, "jump dispatch"),
            self._hooked(
                "filter-input",
                "filter",
                "input",
                0,
                f"ct state new {self._frontend} @relay jump translated",
                "ct state new jump refused",
            ),
            self._hooked("filter-forward", "filter", "forward", 0, "ct state new jump refused"),
            self._hooked("filter-output", "filter", "output", 0, "ct state new jump refused"),
            Chain(name="guard", rules=self._guard()),
            Chain(name="dispatch", rules=self._dispatch()),
            Chain(name="translated", rules=self.rules("ct status dnat return", "goto refuse")),
            Chain(name="refused", rules=self._refused()),
            Chain(name="unserved", rules=self._unserved()),
            Chain(name="refuse", rules=self.rules("reject with tcp reset", "reject")),
        )

    def _hooked(self, name: str, kind: str, hook: str, priority: int, *texts: str) -> Chain:
        return Chain(name=name, type=kind, hook=hook, priority=priority, rules=self.rules(*texts))

    def _guard(self) -> tuple[Rule, ...]:
        return self.rules(
            f"{self._frontend} @guarded-services {self._frontend} . {self.family} saddr != @guarded-sources drop"
        )

    def _dispatch(self) -> tuple[Rule, ...]:
        outside = f"{self._no_pod} fib saddr type != local".strip()
        to_node, node_port = self._to_node, "meta l4proto . th dport"
        lead = f"dnat {self.family} to"
        return self.rules(
            f"{outside} {self._frontend} @not-local-services drop",
            f"{outside} {lead} {self._frontend} map @local-services",
            f"{lead} {self._frontend} map @services",
            f"{outside} {to_node} {node_port} @not-local-node-ports drop",
            f"{outside} {to_node} {lead} {node_port} map @local-node-ports",
            f"{to_node} {lead} {node_port} map @node-ports",
        )

    def _refused(self) -> tuple[Rule, ...]:
        return self.rules(
            f"{self._frontend} vmap @refused-services",
            f"{self._to_node} meta l4proto . th dport vmap @refused-node-ports",
            f"{self.family} daddr @cluster-ips goto unserved",
            f"{self.family} daddr @service-cidrs drop",
        )

    def _unserved(self) -> tuple[Rule, ...]:
        return self.rules(f"{self.family} daddr @service-cidrs ct status confirmed drop", "goto refuse")

    def table(self, contents: Mapping[str, Mapping[bytes, Element]]) -> Table:
        """The whole table: the constant part, and elements by the name of their set."""
        sets = tuple(
            msgspec.structs.replace(each, elements=contents[each.name]) if contents.get(each.name) else each
            for each in self.sets()
        )
        return Table(
            family=self.family, name=TABLE, comment="podwire: Services through a relay", chains=self.chains(), sets=sets
        )
