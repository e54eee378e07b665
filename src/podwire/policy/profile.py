"""The rules of policies for some pods in one direction: the port table of each peer, at the cost of a change (pure).

Pods share a profile when policies with the same subjects select them, and when they give the same numbers to the named
ports of these policies (:mod:`podwire.policy.nodepods`). A profile has the rules of all tiers
(:mod:`podwire.policy.profilerules`). Peers to which the same rules apply make a :class:`HostGroup` with one
:class:`~podwire.policy.ports.PortTable`, so ten thousand peers cost a few tables. Peers to which only the rules for
everyone and for their address apply are in no group.

A policy that comes, changes or goes changes the tables of the groups that its rules match. A rule with selectors that
another rule has too matches whole groups; a rule with new selectors splits groups, at the cost of the peers that it
matches. A rule with blocks costs the ranges that its blocks cover, and the peers in these ranges. Rules with nodes, and
egress rules with the first or last mention of a named port, need a new profile (:meth:`Profile.fits`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from podwire.policy.blocks import Blocks
from podwire.policy.compiled import CompiledPolicy, CompiledRule, NamedPort
from podwire.policy.hostgroups import NO_RULES, OWN_NODE, HostGroup, HostGroupKey, HostGroups, regroup
from podwire.policy.ports import PortTable
from podwire.policy.profilerules import ProfilePolicies, ProfileRules, SinglePortRules

_MOST_CHANGES = 64


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
    """The identity of a profile: what selected its pods when the profile was made.

    It stays the same when policies come or go for the same pods, also if these have selectors of their own: then
    :attr:`Profile.subjects` has the current selectors.
    """

    direction: str
    subjects: tuple[str, ...] = ()
    """The selectors of the policies that applied to the pods, in their JSON form, in order."""
    cluster: bool = False
    """Whether cluster policies are among them; these also apply to what pods send to their own node."""
    named: tuple[NamedPort, ...] = ()
    """The pods' own ports that the policies name; ingress only."""
    own_node_egress: bool = True
    """Whether pods reach their own node regardless of NetworkPolicies."""
    copy: int = 0
    """Distinguishes profiles whose pods the same selectors selected at different times."""

    @property
    def to_own_node(self) -> bool:
        """Whether policies apply to what the pods send to their own node."""
        return self.direction == "Egress" and (not self.own_node_egress or self.cluster)


class KnownPeers(Protocol):
    """Finds the addresses of pods and nodes."""

    def addresses_matching(self, selectors: frozenset[int]) -> Iterable[str]:
        """The addresses of the pods that any of the selectors matches."""
        ...

    def within(self, family: int, first: int, last: int) -> Iterable[str]:
        """The addresses of pods and nodes in a range, and addresses of nodes that blocks match by another address."""
        ...


PolicyChange = tuple[CompiledPolicy | None, CompiledPolicy | None]
"""A policy before and after a change; None: there was none, or it is gone."""
AddressRange = tuple[int, int, int]
"""The family (4 or 6), and the first and last address as numbers."""


class Profile:
    """The rules of one direction for some pods, and the tables of all peers."""

    def __init__(self, key: ProfileKey, policies: Iterable[CompiledPolicy]) -> None:
        self.key = key
        self.subjects = key.subjects
        """The selectors of the policies that apply to the pods now, in their JSON form, in order."""
        self._rules = ProfileRules(key.direction, key.named)
        for policy in policies:
            self._rules.add(policy)
        self.blocks = {family: Blocks(tuple(self._rules.blocks()), family) for family in (4, 6)}
        self.peers = HostGroups(self._make, self.blocks)
        """The groups of peers with the same table."""
        self._lessening: dict[tuple[int, int], bool] = {}
        self._tables: dict[HostGroupKey, PortTable] = {}
        self._policies: ProfilePolicies | None = None

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
    def selectors(self) -> frozenset[int]:
        """The numbers of the selectors of pods in the rules."""
        return frozenset(self._rules.selectors())

    @property
    def by_name(self) -> bool:
        """Whether the named ports of peers change a table."""
        return bool(self._rules.names) and self.key.direction == "Egress"

    def covered(self) -> Iterator[AddressRange]:
        """The ranges of addresses that blocks contain."""
        for family, blocks in self.blocks.items():
            yield from ((family, first, last) for first, last, _ in blocks.intervals)

    def at(self, address: str) -> PortTable:
        """The table of an address."""
        return (self.peers.of(address) or self.peers.surroundings(self._holding(address))).table

    def table(self, peer: PeerMatch | None) -> PortTable | None:
        """The table of a peer; None: the groups of :attr:`peers` give the same table for its address."""
        key = self._key(peer, peer.address) if peer is not None else None
        if key is None:
            return None
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._make(key)
        return None if table == self.peers.surroundings(key.around).table else table

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
            return HostGroupKey(NO_RULES, around, own_node=True)
        holding = frozenset().union(*map(self._holding, peer.node_addresses)) if peer.node_addresses else around
        named: tuple[NamedPort, ...] = ()
        if self.by_name:
            named = tuple(port for port in peer.named if port[0] in self._rules.names)
        matched = self._rules.matched(peer.selectors, peer.nodes)
        own_node = peer.own_node and self.key.own_node_egress
        key = HostGroupKey(matched | holding if holding else matched, around, named, own_node)
        return None if key.surroundings else key

    # Changes of peers

    def fill(self, selectors: frozenset[int], addresses: Mapping[str, Iterable[str]]) -> None:
        """Adds pods that these selectors match to a new profile whose tables do not depend on the pods' named ports.

        ``addresses`` are the pods' addresses, by family; those that blocks contain are left to :meth:`follow`.
        """
        key = HostGroupKey(self._rules.matched(selectors))
        if key.surroundings:
            return
        self.peers.add(key, addresses)

    def follow(self, peer: PeerMatch | None, address: str) -> bool:
        """Updates an address (``peer`` None: the address has no owner now).

        Returns whether its entry in :attr:`HostGroups.hosts` changed.
        """
        key, group = self._key(peer, address), self.peers.of(address)
        if key == (group.key if group is not None else None):
            return False
        before, was_shown = (group.table, group.shown) if group is not None else (None, False)
        settled = group is None or not self.peers.altered(group)
        after = self.peers.with_key(key) if key is not None else None
        self.peers.move(address, after)
        is_shown = after is not None and after.shown
        alike = was_shown == is_shown and (not is_shown or (after is not None and before == after.table))
        if alike and settled:  # Data planes still have the group as it was, with the address.
            return False
        around = self.peers.surroundings(self._holding(address)).table
        if self._lessens(before or around, after.table if after is not None else around):
            self.peers.change.lost.add(address)
        self.peers.change.hosts.add(address)
        return True

    def _lessens(self, before: PortTable, after: PortTable) -> bool:
        """Whether traffic is denied now that was accepted; cached until a policy changes."""
        pair = (id(before), id(after))
        cached = self._lessening.get(pair)
        if cached is None:
            cached = self._lessening[pair] = before.lessens(after)
        return cached

    # Changes of policies

    def fits(self, changes: Sequence[PolicyChange]) -> bool:
        """Whether :meth:`replace` can take over all of these changes; otherwise the profile must be made anew.

        Many changes at once cost less that way.
        """
        if len(changes) > _MOST_CHANGES:
            return False
        direction, names = self.key.direction, Counter(self._rules.names)
        for before, after in changes:
            old = before.rules[direction] if before is not None else ()
            new = after.rules[direction] if after is not None else ()
            if any(rule.nodes for rule in (*old, *new)):
                return False
            names.subtract(name for rule in old for name, _ in rule.names)
            names.update(name for rule in new for name, _ in rule.names)
        return direction == "Ingress" or (+names).keys() == self._rules.names.keys()

    def replace(
        self,
        before: CompiledPolicy | None,
        after: CompiledPolicy | None,
        peers: KnownPeers,
        moving: Iterable[str] = (),
    ) -> list[AddressRange]:
        """Adds, changes or deletes (``after`` None) a policy; returns the ranges with other rules.

        ``moving`` are the addresses that :meth:`follow` is called for afterwards; so are those of nodes in the ranges.
        """
        rules, self._policies = self._rules, None
        isolation, plain = rules.isolation, rules.only_plain
        self._tables.clear()
        deleted = rules.take_out(before.key) if before is not None else ()
        added = rules.add(after) if after is not None else ()
        changed, cut = self._cover(deleted, added)
        if cut:
            self._surround(deleted, added, {*moving, *(address for part in cut for address in peers.within(*part))})
        for number in added:
            self._spread(number, peers)
        ending = self.peers.groups() if deleted else ()
        for group in [group for group in ending if not group.key.rules.isdisjoint(deleted)]:
            self.peers.rekey(group, group.key._replace(rules=group.key.rules.difference(deleted)))
        self.peers.forget_surroundings()
        everywhere = isolation != rules.isolation or not rules.everyone.isdisjoint((*deleted, *added))
        rules.delete(deleted)
        self._lessening.clear()
        self.peers.refresh(everywhere=everywhere)
        narrower = not set(_meanings(before, self.key.direction)) <= set(_meanings(after, self.key.direction))
        begins = rules.isolation.isolated and not isolation.isolated
        self.peers.change.lessened |= narrower or begins or not (plain and rules.only_plain)
        return changed

    def _cover(self, deleted: Iterable[int], added: Iterable[int]) -> tuple[list[AddressRange], list[AddressRange]]:
        """Takes the blocks of rules out of the ranges and into them.

        Returns the ranges that changed, and those among them in which groups of peers must be cut.
        """
        changed: list[AddressRange] = []
        cut: list[AddressRange] = []
        for numbers, adds in ((deleted, False), (added, True)):
            for number in numbers:
                own = self._rules[number].blocks
                touched: set[frozenset[int]] = set()
                ranges: list[AddressRange] = []
                filled = False
                for family, blocks in self.blocks.items() if own else ():
                    covered = blocks.add(number, own) if adds else blocks.remove(number, own)
                    ranges += ((family, first, last) for first, last in covered)
                    touched |= blocks.touched
                    filled = filled or blocks.filled
                if not own:
                    continue
                replaced = self.peers.surround(number, touched, added=adds)
                for group in [group for group in self.peers.groups() if group.key.around in replaced]:
                    around = replaced[group.key.around]
                    self.peers.rekey(group, _within(self.key.direction, group.key, around, (number,)))
                changed += ranges
                if adds and (filled or replaced.keys() != touched):
                    cut += ranges
        for family, blocks in self.blocks.items():
            regions = blocks.take_regions()
            if regions:
                self.peers.change.ranges.setdefault(family, []).extend(regions)
        return changed, cut

    def _surround(self, deleted: Iterable[int], added: Iterable[int], addresses: Iterable[str]) -> None:
        """Moves addresses to the groups with the rules whose blocks contain them now.

        The rules of nodes that blocks match by another address are left to :meth:`follow`.
        """
        gone = frozenset(number for number in deleted if self._rules[number].blocks)
        members: dict[tuple[HostGroup, frozenset[int]], list[str]] = {}
        for address in addresses:
            group = self.peers.of(address)
            around = self._holding(address) if group is not None else NO_RULES
            if group is not None and around != group.key.around:
                members.setdefault((group, around), []).append(address)
        for (group, around), own in members.items():
            regroup(self.peers, group, own, _within(self.key.direction, group.key, around, {*gone, *added}))

    def _spread(self, number: int, peers: KnownPeers) -> None:
        """Applies a new rule to the groups of the peers that its selectors match."""
        rule = self._rules[number]
        if not rule.selectors:
            return
        twin = self._rules.with_same_peers(number)
        if twin is not None:
            for group in [group for group in self.peers.groups() if twin in group.key.rules]:
                self.peers.rekey(group, group.key._replace(rules=group.key.rules | {number}))
            return
        members: dict[HostGroup | frozenset[int], list[str]] = {}
        for address in peers.addresses_matching(rule.selectors):
            members.setdefault(self.peers.of(address) or self._holding(address), []).append(address)
        for before, addresses in members.items():
            if isinstance(before, HostGroup):
                regroup(self.peers, before, addresses, before.key._replace(rules=before.key.rules | {number}))
            else:
                self.peers.move_all(addresses, HostGroupKey(before | {number}, before))


def _within(direction: str, key: HostGroupKey, around: frozenset[int], changed: Collection[int]) -> HostGroupKey:
    """The key of a group whose addresses are in other ranges now; ``changed`` are the rules that came or went."""
    exempt = key.own_node and direction == "Ingress"
    rules = key.rules if exempt else key.rules.difference(changed) | around.intersection(changed)
    return key._replace(rules=rules, around=around)


def _meanings(policy: CompiledPolicy | None, direction: str) -> Iterator[CompiledRule]:
    """The rules of a policy without their names and places."""
    rules = policy.rules[direction] if policy is not None else ()
    return (msgspec.structs.replace(rule, policy="", place=0, log="") for rule in rules)
