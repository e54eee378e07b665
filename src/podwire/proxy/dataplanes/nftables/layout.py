"""The constant part of the table: sets, chains and rules that do not depend on any Service (pure).

A new connection costs a few hash lookups, for any number of Services::

    services                     frontend -> goto <kind>-<number of slots>
    <kind>-<number of slots>     mark for masquerade, depending on the kind; dnat to endpoints[frontend . random slot]

All Services with the same number of slots (see ``slots``) share a chain, so a change of one Service changes only map
elements. At least half of the slots lead to an endpoint (with the smallest number, four, at least one slot). A chain
draws a random slot six times, and then from the lower half, where no slot is empty. A frontend is ``address . protocol
. port``, or ``protocol . port`` for a node port. The *kinds* follow the rules of Kubernetes for source translation:

==========  ======================================  ================================================
kind        used for                                masquerade
==========  ======================================  ================================================
cluster     cluster addresses; pods and this node   sources that are not pods; with
            that connect to Local frontends         ``masquerade_all`` every source
shortcut    pods and this node that connect to      sources that are not pods
            Local frontends, ``masquerade_all``
external    external frontends, policy Cluster      every source
local       external frontends, policy Local, for   never
            sources outside the cluster
==========  ======================================  ================================================

A Local frontend is in two maps: in ``local-services`` for sources outside the cluster, with slots from 65536, and in
``services`` for all other sources. Packets with the masquerade mark are masqueraded in postrouting, and so are packets
of an endpoint that reaches itself (``hairpin``).

Session affinity stores the number of an endpoint in a dynamic map that packets fill (``affinity-clients``; see
``affinity`` for the key). Rules pass the number in the packet mark, and the mark is removed right after the nat hook.
The number of a removed endpoint has no entry: the affinity of the client is deleted, and the same packet gets another
endpoint. When the map is full, a client is served without affinity.

A pod's segment that connection tracking calls invalid (outside the window) is not translated back. The client knows
only the Service's address, so it would answer with a reset and end the connection at the pod. Such segments are dropped
(chain ``invalid``); the receiver could not use them anyway. This applies to TCP segments from pods without SYN and RST:
segments with RST are not answered, and segments with SYN may open a connection that tracking has not seen.

A connection to a frontend without endpoints is refused at once, and so is one to a port that no Service has
(:mod:`podwire.proxy.nft_layout`). Priorities are those of kube-proxy's documented interface.
"""

from collections.abc import Mapping

import msgspec

from podwire.proxy.dataplanes.nftables.affinity import AFFINITY_BIT, AffinityMarks
from podwire.proxy.dataplanes.nftables.slots import MIN_CAPACITY
from podwire.proxy.nft_layout import NODE_PORT, NftLayout, with_contents
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule

TABLE = "podwire-proxy"
LOCAL_SLOT = 65536
"""The first slot of the local endpoints of a frontend."""
INVALID = "invalid"
"""The chain that drops segments outside the window; its last rule counts them."""
DRAWS = 6
"""How often a chain draws from all slots; at most one in 64 connections then draws from the lower half."""
AFFINITY_SIZE = 1 << 20
"""The maximum number of clients with affinity; the kernel allocates memory for each when it connects."""


class Shape(msgspec.Struct, frozen=True, gc=False, order=True):
    """The properties of a shared chain."""

    kind: str
    """cluster, shortcut, external or local."""
    capacity: int
    """The number of slots to draw from."""
    node_port: bool = False
    affinity_s: int = 0

    @property
    def chain(self) -> str:
        """The name of the chain, such as ``node-port-external-3-affinity-10800``."""
        prefix = "node-port-" if self.node_port else ""
        suffix = f"-affinity-{self.affinity_s}" if self.affinity_s else ""
        return f"{prefix}{self.kind}-{self.capacity}{suffix}"

    @property
    def candidate(self) -> str:
        """The name of the chain that draws a slot for a client, with session affinity."""
        prefix = "node-port-" if self.node_port else ""
        return f"{prefix}{'local-' if self.kind == 'local' else ''}candidate-{self.capacity}"


def capacity_of(chain: str) -> int:
    """The number of slots that a chain of this name draws from."""
    number = chain.partition("-affinity-")[0].rpartition("-")[2]
    return int(number) if number.isdigit() else MIN_CAPACITY


class NftablesLayout(NftLayout):
    """The constant part for one family on one node."""

    def sets(self) -> tuple[Set, ...]:
        """Declarations of all sets and maps; sets that depend only on the node have their elements."""
        address = self.address
        frontend = (address, "inet_proto", "inet_service")
        node_port = ("inet_proto", "inet_service")
        target = (address, "inet_service")
        verdict = ("verdict",)
        return (
            Set(name="services", key=frontend, data=verdict),
            Set(name="local-services", key=frontend, data=verdict),
            Set(name="node-ports", key=node_port, data=verdict),
            Set(name="local-node-ports", key=node_port, data=verdict),
            Set(name="endpoints", key=(*frontend, "slot"), data=target),
            Set(name="node-port-endpoints", key=(*node_port, "slot"), data=target),
            *self.refusing_sets(),
            Set(name="hairpin", key=(address, address)),
            Set(name="affinity-slots", key=(*frontend, "slot"), data=("mark",)),
            Set(name="affinity-node-port-slots", key=(*node_port, "slot"), data=("mark",)),
            Set(name="affinity-endpoints", key=("mark",), data=target),
            Set(
                name="affinity-clients",
                key=(address, "mark"),
                data=("mark",),
                flags=("dynamic", "timeout"),
                size=AFFINITY_SIZE,
            ),
            *self.node_sets(),
        )

    def chains(self, shapes: frozenset[Shape]) -> tuple[Chain, ...]:
        """The constant chains, the chains of the shapes, and with affinity the chains that remove its mark."""
        jump_invalid = f"ct state invalid jump {INVALID}" if self.pod else ""
        chains = [
            *self.guards(),
            self.hooked("nat-prerouting", "nat", "prerouting", -100, "jump dispatch"),
            self.hooked("nat-output", "nat", "output", -100, "jump dispatch"),
            self.hooked(
                "nat-postrouting",
                "nat",
                "postrouting",
                100,
                f"meta mark & {self.mark} == {self.mark} meta mark set meta mark ^ {self.mark} masquerade fully-random",
                f"ct status dnat {self.family} saddr . {self.family} daddr @hairpin masquerade fully-random",
            ),
            self.hooked("filter-input", "filter", "input", 0, "ct state new jump refused", jump_invalid),
            self.hooked("filter-forward", "filter", "forward", 0, "ct state new jump refused", jump_invalid),
            self.hooked("filter-output", "filter", "output", 0, "ct state new jump refused"),
            Chain(name="dispatch", rules=self._dispatch()),
            *self.refusals(),
            *([Chain(name=INVALID, rules=self._invalid())] if jump_invalid else ()),
        ]
        shared = [chain for shape in sorted(shapes) for chain in self._shared(shape)]
        chains += {chain.name: chain for chain in shared}.values()
        if any(shape.affinity_s for shape in shapes):
            remove_mark = (
                f"ct state new ct status dnat meta mark & 0x{AFFINITY_BIT:08x} == 0x{AFFINITY_BIT:08x} "
                f"meta mark set meta mark & {self.mark}"
            )
            chains.append(self.hooked("affinity-prerouting", "filter", "prerouting", -99, remove_mark))
            chains.append(self.hooked("affinity-output", "filter", "output", -99, remove_mark))
        return tuple(chains)

    def _invalid(self) -> tuple[Rule, ...]:
        return self.rules("tcp flags syn,rst return", f"meta l4proto tcp {self.pod} counter drop")

    def _dispatch(self) -> tuple[Rule, ...]:
        return self.rules(
            f"{self.outside} {self.frontend} vmap @local-services",
            f"{self.frontend} vmap @services",
            f"{self.outside} {self.to_node} {NODE_PORT} vmap @local-node-ports",
            f"{self.to_node} {NODE_PORT} vmap @node-ports",
        )

    def _shared(self, shape: Shape) -> tuple[Chain, ...]:
        """The chain of a shape, and with affinity the chain that draws its slots."""
        key = NODE_PORT if shape.node_port else self.frontend
        offset = f" offset {LOCAL_SLOT}" if shape.kind == "local" else ""
        lower = [shape.capacity // 2, 1] if shape.capacity == MIN_CAPACITY else [shape.capacity // 2]
        slots = [f"{key} . numgen random mod {count}{offset}" for count in [shape.capacity] * DRAWS + lower]
        if shape.affinity_s:
            name = "affinity-node-port-slots" if shape.node_port else "affinity-slots"
            candidate = self.rules(*(f"meta mark set {slot} map @{name} return" for slot in slots))
            return Chain(name=shape.candidate, rules=candidate), Chain(
                name=shape.chain, rules=self._affinity_rules(shape)
            )
        endpoints = "node-port-endpoints" if shape.node_port else "endpoints"
        translate = (f"dnat {self.family} to {slot} map @{endpoints}" for slot in slots)
        return (Chain(name=shape.chain, rules=self.rules(self._masquerade(shape.kind), *translate)),)

    def _masquerade(self, kind: str) -> str:
        mark = f"meta mark set meta mark | {self.mark}"
        if kind == "external" or (kind == "cluster" and self.facts.masquerade_all):
            return mark
        if kind in ("cluster", "shortcut") and self.no_pod:
            return f"{self.no_pod} {mark}"
        return ""

    def _affinity_rules(self, shape: Shape) -> tuple[Rule, ...]:
        list_of_mark = f"meta mark & 0x{AffinityMarks(self.facts.masquerade_mark).mask:08x}"
        client = f"{self.family} saddr . {list_of_mark}"
        choose = f"jump {shape.candidate}"
        remember = f"update @affinity-clients {{ {client} timeout {shape.affinity_s}s : meta mark }}"
        recall = (
            f"meta mark set {list_of_mark}",
            f"meta mark set {self.family} saddr . meta mark map @affinity-clients",
        )
        any_protocol = "meta l4proto { tcp, udp, sctp }"
        translate = f"{any_protocol} dnat {self.family} to meta mark map @affinity-endpoints"
        serve = (self._masquerade(shape.kind), translate)
        forget = f"delete @affinity-clients {{ {client} : meta mark }}"
        attempt = (choose, remember, *recall, *serve)
        return self.rules(*attempt, forget, *attempt, choose, *serve)

    def table(self, shapes: frozenset[Shape], contents: Mapping[str, Mapping[bytes, Element]]) -> Table:
        """The whole table: the constant part, shared chains, and ``contents``, elements by the name of their set."""
        sets = with_contents(self.sets(), contents)
        return Table(family=self.family, name=TABLE, comment="podwire: Services", chains=self.chains(shapes), sets=sets)
