"""What policies say of some pods in one direction: the port table of each peer, at the cost of each change (pure).

Pods share a profile when policies with the same subjects select them, and when they give the same numbers to the named
ports of these policies. A profile has the rules of all tiers (:mod:`podwire.policy.profilerules`). Peers to which the
same rules apply make a :class:`HostGroup` with one :class:`~podwire.policy.ports.PortTable`, so ten thousand peers cost
a few tables. Peers to which only the rules for everyone and for their address apply are in no group.

A policy that comes, changes or goes changes the tables of the groups that its rules match. A rule with the peers of
another rule matches whole groups; a rule with new peers splits groups, at the cost of the peers that it matches and of
the ranges that its blocks overlap.
"""

from collections.abc import Collection, Iterable, Iterator

import msgspec

from podwire.policy.blocks import Blocks, ranges_of
from podwire.policy.compiled import CompiledPolicy, CompiledRule, NamedPort
from podwire.policy.hostgroups import NOTHING, OWN_NODE, HostGroup, HostGroupKey, HostGroups
from podwire.policy.peers import PeerIndex, PeerMatch
from podwire.policy.ports import PortTable
from podwire.policy.profilerules import ProfilePolicies, ProfileRules, SinglePortRules

Range = tuple[int, int, HostGroup]
"""First and last address, both included, and the group of all addresses between them that are in no other group."""


class ProfileKey(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a profile: pods with equal keys share one profile.

    It names what selects the pods, not the policies, so it stays the same when policies come or go for the same pods.
    """

    direction: str
    subjects: tuple[str, ...] = ()
    """The selectors of the policies that apply to the pods, in their JSON form, in order."""
    cluster: bool = False
    """Whether cluster policies are among them; these also apply to what pods send to their own node."""
    named: tuple[NamedPort, ...] = ()
    """The pods' own ports that the policies name; ingress only."""
    own_node_egress: bool = True
    """Whether pods reach their own node regardless of NetworkPolicies."""

    @property
    def to_own_node(self) -> bool:
        """Whether policies apply to what the pods send to their own node."""
        return self.direction == "Egress" and (not self.own_node_egress or self.cluster)


class ProfileChange(msgspec.Struct, kw_only=True):
    """What changed in a profile since the last :meth:`Profile.take_change`."""

    groups: set[HostGroup] = set()
    """Groups with another table, new groups, and groups that are empty now."""
    hosts: set[str] = set()
    """Addresses that moved from one group to another."""
    lost: set[str] = set()
    """The addresses of :attr:`hosts` for which traffic is denied now that was accepted before."""
    lessened: bool = False
    """Whether a policy that changed may deny traffic now that was accepted before."""
    ranges: set[int] = set()
    """The families with ranges that came, went, or have other ends or rules."""


class Profile:
    """The rules of one direction for some pods, and the tables of all peers."""

    def __init__(self, key: ProfileKey, policies: Iterable[CompiledPolicy]) -> None:
        self.key = key
        self._rules = ProfileRules(key.direction, key.named)
        for policy in policies:
            self._rules.add(policy)
        self.blocks = {family: Blocks(tuple(self._rules.blocks()), family) for family in (4, 6)}
        self._groups = HostGroups(self._make)
        self._lessening: dict[tuple[int, int], bool] = {}
        self._tables: dict[HostGroupKey, PortTable] = {}
        self._policies: ProfilePolicies | None = None
        self._change = ProfileChange()

    # What the profile says

    @property
    def policies(self) -> ProfilePolicies:
        """The NetworkPolicies by their keys."""
        if self._policies is None:
            self._policies = self._rules.policies
        return self._policies

    @property
    def rules(self) -> tuple[CompiledRule, ...]:
        """All rules in the order of evaluation."""
        return self._rules.in_order()

    @property
    def isolated(self) -> bool:
        """Whether NetworkPolicies in force select the pods."""
        return self._rules.isolation.isolated

    @property
    def hosts(self) -> dict[str, PortTable]:
        """The table of each address that differs from the table of :attr:`blocks` and :attr:`default` there."""
        return {address: group.table for address, group in self._groups.shown()}

    def groups(self) -> Iterable[HostGroup]:
        """All groups of peers."""
        return self._groups

    def group(self, address: str) -> HostGroup | None:
        """The group of an address; None: the address has the table of its surroundings."""
        group = self._groups.of(address)
        return group if group is not None and group.shown else None

    def surroundings(self, rules: frozenset[int] = NOTHING) -> HostGroup:
        """The group, without addresses, of all addresses that only these rules with blocks contain."""
        return self._groups.surroundings(rules)

    @property
    def default(self) -> PortTable:
        """The table of all addresses outside :attr:`hosts` and all blocks."""
        return self.surroundings().table

    def ranges(self, family: int) -> tuple[Range, ...]:
        """Disjoint ranges of addresses as numbers, with the group that holds there for all but :attr:`hosts`."""
        return tuple((first, last, self.surroundings(rules)) for first, last, rules in self.blocks[family].intervals)

    def at(self, address: str) -> PortTable:
        """The table of an address."""
        return (self._groups.of(address) or self.surroundings(self._holding(address))).table

    def table(self, peer: PeerMatch | None) -> PortTable | None:
        """The table of a peer; None when :meth:`ranges` or :attr:`default` give the same table for its address."""
        key = self._key(peer, peer.address) if peer is not None else None
        if key is None:
            return None
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._make(key)
        return None if table == self.surroundings(key.around).table else table

    def _holding(self, address: str) -> frozenset[int]:
        """The numbers of the rules with a block that contains an address."""
        return self.blocks[6 if ":" in address else 4].holding(address)

    def _make(self, key: HostGroupKey, memory: SinglePortRules | None = None) -> PortTable:
        if key.own_node and self.key.direction == "Ingress":
            return OWN_NODE
        rules = self._rules.everyone | key.rules
        return self._rules.table(rules, key.named, own_node=key.own_node, memory=memory)

    def _key(self, peer: PeerMatch | None, address: str) -> HostGroupKey | None:
        """The key of the group of a peer; None: it is in no group."""
        if peer is None:
            return None
        around = self._holding(address)
        if peer.own_node and self.key.direction == "Ingress":
            return HostGroupKey(NOTHING, around, own_node=True)
        holding = frozenset().union(*map(self._holding, peer.node_addresses)) if peer.node_addresses else around
        rules = self._rules.matched(peer.selectors, peer.nodes) | holding
        own_node = peer.own_node and self.key.own_node_egress
        key = HostGroupKey(rules, around, self._rules.named(peer.named, rules), own_node)
        return None if key.surroundings else key

    # Changes of peers

    def fill(self, peers: PeerIndex) -> None:
        """Adds all peers to a new profile."""
        for selectors, families in peers.alike(None if self._rules.by_name_anywhere() else self._rules.selectors()):
            matched = self._rules.matched(selectors)
            if matched or self._rules.by_name:
                for family, addresses in families.items():
                    self._fill(matched, family, addresses, peers)
        for address in peers.nodes():
            self.follow(peers.at(address), address)
        self.take_change()

    def _fill(self, matched: frozenset[int], family: str, addresses: Collection[str], peers: PeerIndex) -> None:
        """Adds pods that the same rules match, blocks aside."""
        blocks = self.blocks[6 if family == "ip6" else 4]
        if not (blocks.intervals or self._rules.by_name):
            self._groups.put(HostGroupKey(matched), family, addresses)
            return
        alike: dict[tuple[frozenset[int], tuple[NamedPort, ...]], list[str]] = {}
        by_name = self._rules.by_name
        for address in addresses:
            ports = peers.named(address) if by_name else ()
            alike.setdefault((blocks.holding(address), ports), []).append(address)
        for (around, ports), own in alike.items():
            rules = matched | around
            self._groups.put(HostGroupKey(rules, around, self._rules.named(ports, rules)), family, own)

    def follow(self, peer: PeerMatch | None, address: str) -> bool:
        """Updates an address (None: nobody owns it now); returns whether its entry in :attr:`hosts` changed."""
        key, group = self._key(peer, address), self._groups.of(address)
        if key == (group.key if group is not None else None):
            return False
        before, was_shown = (group.table, group.shown) if group is not None else (None, False)
        after = self._groups.move((address,), key or _surrounded(self._holding(address)))
        is_shown = after is not None and after.shown
        if was_shown == is_shown and (not is_shown or (after is not None and before == after.table)):
            return False
        around = self.surroundings(self._holding(address)).table
        if self._lessens(before or around, after.table if after is not None else around):
            self._change.lost.add(address)
        self._groups.note((address,))
        return True

    def _lessens(self, before: PortTable, after: PortTable) -> bool:
        """Whether traffic is denied now that was accepted; cached until a policy changes."""
        pair = (id(before), id(after))
        cached = self._lessening.get(pair)
        if cached is None:
            cached = self._lessening[pair] = before.lessens(after)
        return cached

    def take_change(self) -> ProfileChange:
        """Returns what changed since the last call."""
        change, self._change = self._change, ProfileChange()
        change.groups, change.hosts = self._groups.take_changes()
        change.ranges = {family for family, blocks in self.blocks.items() if blocks.take_touched()}
        return change

    # Changes of policies

    def replace(self, before: CompiledPolicy | None, after: CompiledPolicy | None, peers: PeerIndex) -> None:
        """Adds, changes or deletes (``after`` None) a policy."""
        rules, self._policies = self._rules, None
        isolation, plain = rules.isolation, rules.only_plain
        self._tables.clear()
        deleted = rules.take_out(before.key) if before is not None else ()
        added = rules.add(after) if after is not None else ()
        for number in added:
            self._spread(number, peers)
        everywhere = isolation != rules.isolation or not rules.everyone.isdisjoint((*deleted, *added))
        self._withdraw(deleted)
        self._lessening.clear()
        unused: set[frozenset[int]] = set().union(*(blocks.take_unused() for blocks in self.blocks.values()))
        self._groups.delete_surroundings(rules for rules in unused if not self._surrounds(rules))
        self._groups.refresh(everywhere=everywhere)
        self._groups.note_surroundings(unused)
        narrower = not set(_meanings(before, self.key.direction)) <= set(_meanings(after, self.key.direction))
        begins = rules.isolation.isolated and not isolation.isolated
        self._change.lessened |= narrower or begins or not (plain and rules.only_plain)

    def _surrounds(self, rules: frozenset[int]) -> bool:
        """Whether some range has exactly these rules."""
        return any(blocks.uses(rules) for blocks in self.blocks.values())

    def _spread(self, number: int, peers: PeerIndex) -> None:
        """Applies a new rule to the groups of the peers that it matches."""
        rule = self._rules[number]
        twin = self._rules.with_same_peers(number)
        if twin is not None:
            self._join(twin, number)
            return
        matched = set(peers.matching(rule.selectors))
        inside = self._surround(number, rule, peers) if rule.blocks else set()
        if rule.everyone and rule.names and self.key.direction == "Egress":
            matched.update(peers.pods())
        nodes = {*peers.of_nodes(inside), *(peers.nodes() if rule.nodes else ())}
        alike: dict[tuple[HostGroup | frozenset[int], bool, tuple[NamedPort, ...]], list[str]] = {}
        by_name = bool(rule.names) and self.key.direction == "Egress"
        for address in (matched | inside) - nodes:
            ports = peers.named(address) if by_name else ()
            group = self._groups.of(address) or self._holding(address)
            alike.setdefault((group, address in inside, ports), []).append(address)
        own = NOTHING if rule.everyone else frozenset((number,))
        for (group, within, ports), addresses in alike.items():
            key = group.key if isinstance(group, HostGroup) else HostGroupKey(group, group)
            key = key._replace(rules=key.rules | own, around=key.around | own if within else key.around)
            named = self._rules.named(ports, key.rules) if by_name else key.named
            self._regroup(group if isinstance(group, HostGroup) else None, addresses, key._replace(named=named))
        for address in nodes:
            self.follow(peers.at(address), address)

    def _regroup(self, before: HostGroup | None, addresses: list[str], key: HostGroupKey) -> None:
        """Moves addresses of a group to another key."""
        if before is not None and len(before) == len(addresses):
            if key != before.key:
                self._groups.rekey(before, key)
        elif before is not None or not key.surroundings:
            self._groups.move(addresses, key)
            self._groups.note(addresses)

    def _surround(self, number: int, rule: CompiledRule, peers: PeerIndex) -> set[str]:
        """Adds the blocks of a new rule; returns the addresses within them."""
        twin = self._rules.with_same_blocks(rule.blocks, besides=number)
        found: set[str] = set()
        for family, blocks in self.blocks.items():
            ranges = ranges_of(rule.blocks, family)
            if twin is None:
                blocks.add(number, ranges)
            else:
                blocks.join(twin, number)
            for first, last in ranges:
                found.update(peers.within(family, first, last))
        for rules in set().union(*(blocks.unused for blocks in self.blocks.values())):
            if not self._surrounds(rules) and self._surrounds(rules | {number}):
                self._groups.rename_surroundings(rules, rules | {number})
        return found

    def _join(self, twin: int, number: int) -> None:
        """Adds a rule that matches the same peers as another one."""
        if self._rules[number].blocks:
            for blocks in self.blocks.values():
                blocks.join(twin, number)
            for rules in self._groups.surrounding_rules():
                if twin in rules:
                    self._groups.rename_surroundings(rules, rules | {number})
        for group in self._groups:
            rules, around = group.key.rules, group.key.around
            if twin in rules or twin in around:
                rules = rules | {number} if twin in rules else rules
                around = around | {number} if twin in around else around
                self._groups.rekey(group, group.key._replace(rules=rules, around=around))

    def _withdraw(self, numbers: tuple[int, ...]) -> None:
        """Deletes rules."""
        gone = {number: self._rules[number] for number in numbers}
        self._rules.delete(numbers)
        for number, rule in gone.items():
            if rule.blocks:
                last = self._rules.with_same_blocks(rule.blocks) is None
                for family, blocks in self.blocks.items():
                    if last:
                        blocks.remove(number, ranges_of(rule.blocks, family))
                    else:
                        blocks.leave(number)
                for rules in self._groups.surrounding_rules():
                    if number in rules and self._surrounds(rules - {number}):
                        self._groups.rename_surroundings(rules, rules - {number})
        renamed = self.key.direction == "Egress" and any(rule.names for rule in gone.values())
        for group in self._groups:
            key = group.key
            if renamed or not (key.rules.isdisjoint(numbers) and key.around.isdisjoint(numbers)):
                rules = key.rules.difference(numbers)
                named = self._rules.named(key.named, rules) if renamed else key.named
                after = HostGroupKey(rules, key.around.difference(numbers), named, key.own_node)
                if after != key:
                    self._groups.rekey(group, after)


def _surrounded(rules: frozenset[int]) -> HostGroupKey:
    """The key of addresses to which nothing but their blocks applies."""
    return HostGroupKey(rules, rules)


def _meanings(policy: CompiledPolicy | None, direction: str) -> Iterator[CompiledRule]:
    """The rules of a policy without their names and places."""
    rules = policy.rules[direction] if policy is not None else ()
    return (msgspec.structs.replace(rule, policy="", place=0, log="") for rule in rules)
