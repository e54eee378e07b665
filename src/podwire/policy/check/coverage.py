"""Whether all that one rule speaks of is also spoken of by others (pure).

By what is written, not by which pods there are: a selector is part of another one that has some of its terms and no
others. So what is found stays true when pods come and go; what is part of several others together is not seen.
"""

from collections.abc import Iterable, Sequence

from podwire.model.policy import IPBlock
from podwire.policy.blocks import Blocks
from podwire.policy.check.outline import PeerOutline, RuleOutline
from podwire.policy.check.scope import terms
from podwire.policy.ports import Selection, without


def ports_within(one: RuleOutline, other: RuleOutline) -> bool:
    """Whether all ports of one rule are ports of the other."""
    if not other.ports:
        return True
    if not one.ports or not selection_within(one.numbers, other.numbers):
        return False
    whole = {protocol for protocol, ranges in other.numbers.ports if not without(((1, 65535),), ranges)}
    names = other.names
    return all((name, protocol) in names or (name, "") in names or protocol in whole for name, protocol in one.names)


def selection_within(one: Selection, other: Selection) -> bool:
    """Whether all of one selection is in the other."""
    have = dict(other.ports)
    if one.other and not other.other:
        return False
    return all(not without(ranges, have.get(protocol, ())) for protocol, ranges in one.ports)


def blocks_within(one: IPBlock, others: Sequence[IPBlock]) -> bool:
    """Whether all addresses of a block are in some others together; not for a block without addresses."""
    found = False
    for family in (4, 6):
        both = Blocks([(0, one), *((1, other) for other in others)], family)
        places = [rules for _, _, rules in both.intervals if 0 in rules]
        if any(1 not in rules for rules in places):
            return False
        found = found or bool(places)
    return found


def peer_within(peer: PeerOutline, rules: Iterable[RuleOutline]) -> bool:
    """Whether a peer is a peer of some of the rules."""
    found = tuple(rules)
    if any(rule.everyone for rule in found):
        return True
    peers = [other for rule in found for other in rule.peers]
    if peer.pods is not None:
        return any(other.pods is not None and peer.scope.within(other.scope) for other in peers)
    if peer.nodes is not None:
        return any(other.nodes is not None and terms(other.nodes) <= terms(peer.nodes) for other in peers)
    blocks = [block for other in peers for _, block in other.blocks]
    return bool(peer.blocks) and all(blocks_within(block, blocks) for _, block in peer.blocks)


def covered_by(rule: RuleOutline, others: Iterable[RuleOutline]) -> tuple[RuleOutline, ...]:
    """Those of other rules that together speak of all a rule speaks of; empty: some of it is its own."""
    wide = tuple(other for other in others if other.known and ports_within(rule, other))
    if not wide or not rule.known:
        return ()
    for other in wide:
        if other.everyone or (rule.peers and all(peer_within(peer, (other,)) for peer in rule.peers)):
            return (other,)
    if rule.everyone or not rule.peers or not all(peer_within(peer, wide) for peer in rule.peers):
        return ()
    return tuple(other for other in wide if any(peer_within(peer, (other,)) for peer in rule.peers))
