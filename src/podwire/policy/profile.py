"""The compiled rules for one direction of some pods, and the port table that follows for each peer (pure).

Pods share a profile when the same policies select them and when they give the same numbers to the named ports of these
policies. A profile holds the rules of all tiers in one list. For a peer, the rules that match the peer make a
:class:`~podwire.policy.ports.PortTable`. Tables are cached by the set of matching rules, so ten thousand peers cost a
few tables.
"""

from collections.abc import Iterable, Sequence

import msgspec

from podwire.model.pod import ContainerPort
from podwire.model.policy import IPBlock
from podwire.policy.audit import AuditScope, mark
from podwire.policy.blocks import Blocks
from podwire.policy.ports import EVERYTHING, PortTable, PortTableBuilder, Ruling, Selection, selection, union

NamedPort = tuple[str, str, int]
"""Name, protocol and number, as a pod declares it."""


DENIED = Ruling(accept=False)
"""The pod is isolated and no rule allows the traffic."""
NO_POLICY = Ruling(accept=True)
"""No policy applies."""
OWN_NODE = PortTableBuilder().table(rest=NO_POLICY)


class CompiledRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of one policy, compiled for matching."""

    tier: str
    """Admin, Namespace or Baseline."""
    policy: str
    place: int
    action: str = "Accept"
    everyone: bool = False
    """Whether the rule matches every peer."""
    selectors: frozenset[int] = frozenset()
    """Numbers of selectors of pods."""
    blocks: tuple[IPBlock, ...] = ()
    nodes: tuple[str, ...] = ()
    """Selectors of nodes in their JSON form."""
    ports: Selection = EVERYTHING
    names: tuple[tuple[str, str], ...] = ()
    """Named ports, each with its protocol (empty: any), in addition to ``ports``."""
    audit: bool = False
    """Whether the policy is in audit, and so not in force."""
    log: str = ""
    """The log setting of the policy, as in :class:`~podwire.policy.ports.Ruling`."""

    def ports_for(self, named: tuple[NamedPort, ...]) -> Selection:
        """The ports of the rule for a destination with these named ports."""
        if not self.names:
            return self.ports
        resolved = [
            selection({protocol: ((number, number),)})
            for wanted, wanted_protocol in self.names
            for name, protocol, number in named
            if name == wanted and wanted_protocol in ("", protocol)
        ]
        return union((self.ports, *resolved))


class PeerMatch(msgspec.Struct, frozen=True, kw_only=True):
    """Which selectors match the owner of an address."""

    address: str
    selectors: frozenset[int] = frozenset()
    """The selectors that match the pod behind it."""
    named: tuple[NamedPort, ...] = ()
    nodes: frozenset[str] = frozenset()
    """The selectors of nodes, in their JSON form, that match the node whose own address it is."""
    node_addresses: tuple[str, ...] = ()
    """For a node's address in its own pod range: the addresses in its Node status, which blocks match instead."""
    own_node: bool = False
    """Whether the address belongs to the node that the pods of the profile run on."""


class ProfileKey(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a profile: pods with equal keys share one profile."""

    direction: str
    policies: tuple[str, ...] = ()
    """Keys of the NetworkPolicies in force that select the pods, in order; empty: the pods are not isolated."""
    audited: tuple[str, ...] = ()
    """The same for NetworkPolicies in audit."""
    cluster_policies: tuple[str, ...] = ()
    """Names in the order of evaluation, including those in audit."""
    log: str = ""
    """The log setting for denials because no rule allows."""
    named: tuple[NamedPort, ...] = ()
    """The pods' own ports that the policies name; ingress only."""
    own_node_egress: bool = True


class Profile:
    """The rules of one direction for some pods, and the tables of all peers that differ from their surroundings."""

    def __init__(self, key: ProfileKey, rules: tuple[CompiledRule, ...]) -> None:
        self.key = key
        self.rules = rules
        self.hosts: dict[str, PortTable] = {}
        """The table of each address that differs from the table of :attr:`blocks` and :attr:`default` there."""
        self.lost: set[str] = set()
        """Addresses for which traffic is denied now that was accepted before; the reader clears the set."""
        self._lessening: dict[tuple[int, int], bool] = {}
        self.blocks = {family: Blocks(_blocks(rules), family) for family in (4, 6)}
        self._of_selector: dict[int, list[int]] = {}
        self._of_nodes: dict[str, list[int]] = {}
        self._everyone = frozenset(place for place, rule in enumerate(rules) if rule.everyone)
        self._of_selectors: dict[frozenset[int], frozenset[int]] = {}
        self._tables: dict[tuple[frozenset[int], tuple[NamedPort, ...], bool], PortTable] = {}
        for place, rule in enumerate(rules):
            for number in rule.selectors:
                self._of_selector.setdefault(number, []).append(place)
            for text in rule.nodes:
                self._of_nodes.setdefault(text, []).append(place)
        self._selectors = frozenset(self._of_selector)
        self._names = frozenset(name for rule in rules for name, _ in rule.names)

    @property
    def by_name(self) -> bool:
        """Whether the named ports of peers change a table."""
        return bool(self._names) and self.key.direction == "Egress"

    @property
    def default(self) -> PortTable:
        """The table of all addresses outside :attr:`hosts` and all blocks."""
        return self._table(self._everyone, (), own_node=False)

    def ranges(self, family: int) -> tuple[tuple[int, int, PortTable], ...]:
        """Disjoint ranges of addresses as numbers, with the table that holds there for all but :attr:`hosts`."""
        return tuple(
            (first, last, self._table(self._everyone | rules, (), own_node=False))
            for first, last, rules in self.blocks[family].intervals
        )

    def table(self, peer: PeerMatch | None) -> PortTable | None:
        """The table of a peer; None when :meth:`ranges` or :attr:`default` give the same table for its address."""
        if peer is None:
            return None
        holding = self._holding(peer.address)
        around = self._table(self._everyone | holding, (), own_node=False)
        if peer.node_addresses:
            holding = frozenset().union(*map(self._holding, peer.node_addresses))
        if peer.own_node and self.key.direction == "Ingress":
            return None if around == OWN_NODE else OWN_NODE
        matched = self._matched(peer.selectors)
        for text in peer.nodes:
            matched = matched.union(self._of_nodes.get(text, ()))
        named: tuple[NamedPort, ...] = ()
        if self._names and self.key.direction == "Egress":
            named = tuple(port for port in peer.named if port[0] in self._names)
        exact = self._table(matched | holding, named, own_node=peer.own_node and self.key.own_node_egress)
        return None if exact is around or exact == around else exact

    def _matched(self, selectors: frozenset[int]) -> frozenset[int]:
        """The indexes of the rules that match a pod with these selectors."""
        own = self._selectors & selectors
        cached = self._of_selectors.get(own)
        if cached is None:
            places = (place for number in own for place in self._of_selector[number])
            cached = self._of_selectors[own] = self._everyone.union(places)
        return cached

    def at(self, address: str) -> PortTable:
        """The table of an address."""
        return self.hosts.get(address) or self._around(address)

    def _around(self, address: str) -> PortTable:
        """The table of an address that is not in :attr:`hosts`."""
        return self._table(self._everyone | self._holding(address), (), own_node=False)

    def _holding(self, address: str) -> frozenset[int]:
        """The indexes of the rules with a block that contains an address."""
        return self.blocks[6 if ":" in address else 4].holding(address)

    def follow(self, peer: PeerMatch | None, address: str) -> bool:
        """Updates an address (None: nobody owns it now); returns whether :attr:`hosts` changed."""
        table = self.table(peer)
        before = self.hosts.get(address)
        if before == table:
            return False
        if self._lessens(before or self._around(address), table or self._around(address)):
            self.lost.add(address)
        if table is None:
            del self.hosts[address]
        else:
            self.hosts[address] = table
        return True

    def _lessens(self, before: PortTable, after: PortTable) -> bool:
        """Whether traffic is denied now that was accepted; cached, since tables live as long as the profile."""
        pair = (id(before), id(after))
        cached = self._lessening.get(pair)
        if cached is None:
            cached = self._lessening[pair] = before.lessens(after)
        return cached

    def _table(self, matched: frozenset[int], named: tuple[NamedPort, ...], *, own_node: bool) -> PortTable:
        key = (matched, named, own_node)
        cached = self._tables.get(key)
        if cached is None:
            destination = self.key.named if self.key.direction == "Ingress" else named
            cached = self._tables[key] = self._make(sorted(matched), destination, own_node=own_node)
        return cached

    def _make(self, matched: list[int], named: tuple[NamedPort, ...], *, own_node: bool) -> PortTable:
        rules = [self.rules[place] for place in matched]
        denied = DENIED if not self.key.log else Ruling(accept=False, log=self.key.log)
        isolated = bool(self.key.policies) and not own_node
        would_isolate = bool(self.key.audited) and not own_node
        in_force = _decided([rule for rule in rules if not rule.audit], named, denied if isolated else None)
        if not would_isolate and not any(rule.audit for rule in rules):
            return in_force
        audited = AuditScope(
            policies=frozenset(rule.policy for rule in rules if rule.audit and rule.tier != "Namespace"),
            isolating=not isolated,
            passing=tuple(
                (rule.ports_for(named), Ruling(accept=False, policy=rule.policy, rule=rule.place))
                for rule in rules
                if rule.audit and rule.tier == "Admin" and rule.action == "Pass"
            ),
        )
        whole = _decided(rules, named, denied if isolated or would_isolate else None)
        return mark(in_force, whole, audited)


def _decided(rules: Sequence[CompiledRule], named: tuple[NamedPort, ...], denied: Ruling | None) -> PortTable:
    """The table of all tiers; ``denied`` is the ruling where no NetworkPolicy allows, None without isolation."""
    maker = PortTableBuilder()
    _decide(maker, (rule for rule in rules if rule.tier == "Admin"), named)
    if denied is not None:
        _decide(maker, (rule for rule in rules if rule.tier == "Namespace"), named)
        maker.decide(EVERYTHING, denied)
    _decide(maker, (rule for rule in rules if rule.tier == "Baseline"), named)
    return maker.table(rest=NO_POLICY)


def _decide(maker: PortTableBuilder, rules: Iterable[CompiledRule], named: tuple[NamedPort, ...]) -> None:
    """Applies the rules of one tier."""
    for rule in rules:
        ports = rule.ports_for(named)
        if rule.action == "Pass":
            maker.pass_on(ports)
        else:
            maker.decide(ports, Ruling(rule.action == "Accept", rule.policy, rule.place, rule.log))
    maker.next_tier()


def _blocks(rules: tuple[CompiledRule, ...]) -> list[tuple[int, IPBlock]]:
    return [(place, block) for place, rule in enumerate(rules) for block in rule.blocks]


def named_ports(ports: tuple[ContainerPort, ...]) -> tuple[NamedPort, ...]:
    """The named ports of a pod."""
    return tuple((port.name, port.protocol or "TCP", port.container_port) for port in ports if port.name)
