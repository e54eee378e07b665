"""The constant part of the table: sets, chains and rules that do not depend on any Service (pure).

A new connection costs a few hash lookups, however many Services there are::

    services                     frontend -> goto <kind>-<slots to draw from>
    <kind>-<n>                   mark for masquerade as the kind says; dnat to endpoints[frontend . random slot]

Chains are shared by all Services with as many slots (see ``slots``), so a change of one Service touches map elements
only. At least half of the slots lead to an endpoint (of the least, four, one): a chain draws six times, and then from
the lower half, where none is empty. A frontend is ``address . protocol . port``, or ``protocol . port`` for a node
port. The *kinds* are the rows of Kubernetes' table of source translation:

==========  ======================================  ================================================
kind        used for                                masquerade
==========  ======================================  ================================================
cluster     cluster addresses; short cut of pods    sources that are not pods; with
            and this node to Local frontends        ``masquerade_all`` every source
shortcut    that short cut, with                    sources that are not pods
            ``masquerade_all``
external    frontends from outside, policy Cluster  every source
local       frontends from outside, policy Local,   never
            for sources outside
==========  ======================================  ================================================

Local frontends stand twice: in ``local-services`` for sources outside, with the slots from 65536, and in
``services`` for everyone else. Masquerade happens in postrouting for marked packets, and for an endpoint that
reaches itself (``hairpin``).

Session affinity remembers an endpoint's number in a dynamic map that packets fill (``affinity-clients``; see
``affinity`` for its key). The number travels in the packet mark between two rules and is taken off the packet right
behind the nat hook. An endpoint that is gone has no entry under its number: the client is forgotten and gets another
one, inside the same packet. Where the memory is full, a client is served without being remembered.

A segment of a pod that connection tracking calls invalid (out of its window) is not translated back. The client, who
knows the Service's address alone, would answer it with a reset and so end the connection at the pod. Such segments are
dropped (chain ``invalid``): TCP from pods, without SYN and RST, which nothing answers so or which open what was not
seen from its beginning. The receiver could not have used them.

Without an endpoint a frontend is refused at once, and so is a port that no Service has
(:mod:`podwire.proxy.nft_frame`). Priorities are those of kube-proxy's documented interface.
"""

from collections.abc import Mapping

import msgspec

from podwire.proxy.dataplanes.nftables.affinity import AFFINITY_BIT, AffinityMarks
from podwire.proxy.dataplanes.nftables.slots import LEAST
from podwire.proxy.nft_frame import NODE_PORT, Frame, filled
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_rules import Rule

TABLE = "podwire-proxy"
LOCAL_SLOT = 65536
"""First slot of the local endpoints of a frontend."""
INVALID = "invalid"
"""The chain that drops what is out of its window; its last rule counts."""
DRAWS = 6
"""How often a slot is drawn among all; then, once in 64 connections at most, among the lower half."""
AFFINITY_SIZE = 1 << 20
"""Clients remembered at most; the kernel takes memory as they come."""


class Shape(msgspec.Struct, frozen=True, gc=False, order=True):
    """What tells one shared chain from another."""

    kind: str
    """cluster, shortcut, external or local."""
    capacity: int
    """Slots to draw from."""
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
        """The name of the chain that finds a candidate where clients are remembered."""
        prefix = "node-port-" if self.node_port else ""
        return f"{prefix}{'local-' if self.kind == 'local' else ''}candidate-{self.capacity}"


def capacity_of(chain: str) -> int:
    """The slots that a chain of this name draws from."""
    number = chain.partition("-affinity-")[0].rpartition("-")[2]
    return int(number) if number.isdigit() else LEAST


class NftablesLayout(Frame):
    """The constant part for one family on one node."""

    def sets(self) -> tuple[Set, ...]:
        """Declarations of all sets and maps, those known from the node's facts with their elements."""
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
        """The chains that are always there, those of the shapes, and with affinity those that take its mark off."""
        lost = f"ct state invalid jump {INVALID}" if self.pod else ""
        found = [
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
            self.hooked("filter-input", "filter", "input", 0, "ct state new jump refused", lost),
            self.hooked("filter-forward", "filter", "forward", 0, "ct state new jump refused", lost),
            self.hooked("filter-output", "filter", "output", 0, "ct state new jump refused"),
            Chain(name="dispatch", rules=self._dispatch()),
            *self.refusals(),
            *([Chain(name=INVALID, rules=self._invalid())] if lost else ()),
        ]
        shared = [chain for shape in sorted(shapes) for chain in self._shared(shape)]
        found += {chain.name: chain for chain in shared}.values()
        if any(shape.affinity_s for shape in shapes):
            wipe = (
                f"ct state new ct status dnat meta mark & 0x{AFFINITY_BIT:08x} == 0x{AFFINITY_BIT:08x} "
                f"meta mark set meta mark & {self.mark}"
            )
            found.append(self.hooked("affinity-prerouting", "filter", "prerouting", -99, wipe))
            found.append(self.hooked("affinity-output", "filter", "output", -99, wipe))
        return tuple(found)

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
        """The chain of a shape, and the one that finds its candidates."""
        key = NODE_PORT if shape.node_port else self.frontend
        offset = f" offset {LOCAL_SLOT}" if shape.kind == "local" else ""
        lower = [shape.capacity // 2, 1] if shape.capacity == LEAST else [shape.capacity // 2]
        slots = [f"{key} . numgen random mod {among}{offset}" for among in [shape.capacity] * DRAWS + lower]
        if shape.affinity_s:
            name = "affinity-node-port-slots" if shape.node_port else "affinity-slots"
            candidate = self.rules(*(f"meta mark set {slot} map @{name} return" for slot in slots))
            return Chain(name=shape.candidate, rules=candidate), Chain(name=shape.chain, rules=self._affine(shape))
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

    def _affine(self, shape: Shape) -> tuple[Rule, ...]:
        listed = f"meta mark & 0x{AffinityMarks(self.facts.masquerade_mark).mask:08x}"
        client = f"{self.family} saddr . {listed}"
        choose = f"jump {shape.candidate}"
        keep = f"update @affinity-clients {{ {client} timeout {shape.affinity_s}s : meta mark }}"
        recall = (f"meta mark set {listed}", f"meta mark set {self.family} saddr . meta mark map @affinity-clients")
        any_of = "meta l4proto { tcp, udp, sctp }"
        translate = f"{any_of} dnat {self.family} to meta mark map @affinity-endpoints"
        serve = (self._masquerade(shape.kind), translate)
        forget = f"delete @affinity-clients {{ {client} : meta mark }}"
        once = (choose, keep, *recall, *serve)
        return self.rules(*once, forget, *once, choose, *serve)

    def table(self, shapes: frozenset[Shape], contents: Mapping[str, Mapping[bytes, Element]]) -> Table:
        """The whole table: constant part, shared chains, and elements by the name of their set."""
        sets = filled(self.sets(), contents)
        return Table(family=self.family, name=TABLE, comment="podwire: Services", chains=self.chains(shapes), sets=sets)
