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

from podwire.proxy.nft_frame import NODE_PORT, Frame, filled
from podwire.proxy.servicemap import of_family
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule

TABLE = "podwire-userspace"


class UserspaceLayout(Frame):
    """The constant part for one family on one node."""

    @property
    def relay_address(self) -> str:
        """Where the relay listens: the first address of the node, empty when it has none of this family."""
        return next(iter(of_family(self.facts.addresses, self.family)), "")

    def sets(self) -> tuple[Set, ...]:
        """Declarations of all sets and maps, those known from the node's facts with their elements."""
        address = self.address
        frontend = (address, "inet_proto", "inet_service")
        node_port = ("inet_proto", "inet_service")
        target = (address, "inet_service")
        return (
            Set(name="services", key=frontend, data=target),
            Set(name="local-services", key=frontend, data=target),
            Set(name="node-ports", key=node_port, data=target),
            Set(name="local-node-ports", key=node_port, data=target),
            Set(name="not-local-services", key=frontend),
            Set(name="not-local-node-ports", key=node_port),
            *self.refusing_sets(),
            Set(name="relay", key=frontend),
            *self.node_sets(),
        )

    def chains(self) -> tuple[Chain, ...]:
        """All chains."""
        own = f"meta mark & {self.mark} == {self.mark} return"
        return (
            *self.guards(),
            self.hooked("nat-prerouting", "nat", "prerouting", -100, "jump dispatch"),
            self.hooked("nat-output", "nat", "output", -100, own, "jump dispatch"),
            self.hooked(
                "filter-input",
                "filter",
                "input",
                0,
                f"ct state new {self.frontend} @relay jump translated",
                "ct state new jump refused",
            ),
            self.hooked("filter-forward", "filter", "forward", 0, "ct state new jump refused"),
            self.hooked("filter-output", "filter", "output", 0, "ct state new jump refused"),
            Chain(name="dispatch", rules=self._dispatch()),
            Chain(name="translated", rules=self.rules("ct status dnat return", "goto refuse")),
            *self.refusals(),
        )

    def _dispatch(self) -> tuple[Rule, ...]:
        outside, to_node = self.outside, self.to_node
        lead = f"dnat {self.family} to"
        return self.rules(
            f"{outside} {self.frontend} @not-local-services drop",
            f"{outside} {lead} {self.frontend} map @local-services",
            f"{lead} {self.frontend} map @services",
            f"{outside} {to_node} {NODE_PORT} @not-local-node-ports drop",
            f"{outside} {to_node} {lead} {NODE_PORT} map @local-node-ports",
            f"{to_node} {lead} {NODE_PORT} map @node-ports",
        )

    def table(self, contents: Mapping[str, Mapping[bytes, Element]]) -> Table:
        """The whole table: the constant part, and elements by the name of their set."""
        sets = filled(self.sets(), contents)
        return Table(
            family=self.family, name=TABLE, comment="podwire: Services through a relay", chains=self.chains(), sets=sets
        )
