"""The constant part of the table that leads to the relay: sets, chains and rules that depend on no Service (pure).

A frontend (``address . protocol . port``, or ``protocol . port`` for a node port) maps to the address and port on which
the relay listens for the frontend; the relay chooses the endpoint. A frontend with ``externalTrafficPolicy: Local`` is
in two maps: ``local-services`` leads clients outside the cluster to the pool with this node's endpoints, ``services``
leads all other clients to the pool with all endpoints.

nftables' ``redirect`` is not used: it translates to an address of the device on which a packet arrived, and drops the
packet when the device has no address, which is the case for pods' devices. So the relay listens on the node's address,
and the rules name this address.

A packet that reaches a port of the relay without translation is refused, because source ranges are checked only for
frontends. Connections of the relay have the packet mark of the proxy; rules do not lead them to the relay again when an
endpoint has the address of a Service. Priorities are those of kube-proxy's documented interface.
"""

from collections.abc import Mapping

from podwire.proxy.nft_layout import NODE_PORT, NftLayout, with_contents
from podwire.proxy.servicemap import of_family
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule

TABLE = "podwire-userspace"


class UserspaceLayout(NftLayout):
    """The constant part for one family on one node."""

    @property
    def relay_address(self) -> str:
        """The address on which the relay listens: the node's first address of this family; empty without one."""
        return next(iter(of_family(self.facts.addresses, self.family)), "")

    def sets(self) -> tuple[Set, ...]:
        """Declarations of all sets and maps; sets that depend only on the node have their elements."""
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
        from_relay = f"meta mark & {self.mark} == {self.mark} return"
        return (
            *self.guards(),
            self.hooked("nat-prerouting", "nat", "prerouting", -100, "jump dispatch"),
            self.hooked("nat-output", "nat", "output", -100, from_relay, "jump dispatch"),
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
        translate = f"dnat {self.family} to"
        return self.rules(
            f"{outside} {self.frontend} @not-local-services drop",
            f"{outside} {translate} {self.frontend} map @local-services",
            f"{translate} {self.frontend} map @services",
            f"{outside} {to_node} {NODE_PORT} @not-local-node-ports drop",
            f"{outside} {to_node} {translate} {NODE_PORT} map @local-node-ports",
            f"{to_node} {translate} {NODE_PORT} map @node-ports",
        )

    def table(self, contents: Mapping[str, Mapping[bytes, Element]]) -> Table:
        """The whole table: the constant part, and ``contents``, elements by the name of their set."""
        sets = with_contents(self.sets(), contents)
        return Table(
            family=self.family, name=TABLE, comment="podwire: Services through a relay", chains=self.chains(), sets=sets
        )
