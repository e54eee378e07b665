"""Whether other rules match everything that a rule matches (pure).

The comparison uses the text of rules, not the current pods: a selector is within another selector that has only some of
its terms. So a result stays true when pods are created or deleted. A selector that is covered only by several others
together is not recognized.
"""

from collections.abc import Iterable, Sequence

from podwire.model.policy import IPBlock
from podwire.policy.blocks import Blocks
from podwire.policy.check.outline import PeerOutline, RuleOutline
from podwire.policy.check.scope import terms
from podwire.policy.ports import Selection, without


def ports_within(inner: RuleOutline, outer: RuleOutline) -> bool:
    """Whether all ports of ``inner`` are ports of ``outer``."""
    if not outer.ports:
        return True
    if not inner.ports or not selection_within(inner.numbers, outer.numbers):
        return False
    whole = {protocol for protocol, ranges in outer.numbers.ports if not without(((1, 65535),), ranges)}
    names = outer.names
    return all((name, protocol) in names or (name, "") in names or protocol in whole for name, protocol in inner.names)


def selection_within(inner: Selection, outer: Selection) -> bool:
    """Whether all ports of ``inner`` are in ``outer``."""
    have = dict(outer.ports)
    if inner.other and not outer.other:
        return False
    return all(not without(ranges, have.get(protocol, ())) for protocol, ranges in inner.ports)


def blocks_within(block: IPBlock, blocks: Sequence[IPBlock]) -> bool:
    """Whether other blocks together contain all addresses of a block; False for a block without addresses."""
    has_addresses = False
    for family in (4, 6):
        both = Blocks([(0, block), *((1, other_block) for other_block in blocks)], family)
        covering = [rules for _, _, rules in both.intervals if 0 in rules]
        if any(1 not in rules for rules in covering):
            return False
        has_addresses = has_addresses or bool(covering)
    return has_addresses


def peer_within(peer: PeerOutline, rules: Iterable[RuleOutline]) -> bool:
    """Whether the rules together match everything that a peer matches."""
    candidates = tuple(rules)
    if any(rule.everyone for rule in candidates):
        return True
    peers = [outer for rule in candidates for outer in rule.peers]
    if peer.pods is not None:
        return any(outer.pods is not None and peer.scope.within(outer.scope) for outer in peers)
    if peer.nodes is not None:
        return any(outer.nodes is not None and terms(outer.nodes) <= terms(peer.nodes) for outer in peers)
    blocks = [block for outer in peers for _, block in outer.blocks]
    return bool(peer.blocks) and all(blocks_within(block, blocks) for _, block in peer.blocks)


def covered_by(rule: RuleOutline, rules: Iterable[RuleOutline]) -> tuple[RuleOutline, ...]:
    """The rules of ``rules`` that together match everything that a rule matches; empty: there are none."""
    wide = tuple(candidate for candidate in rules if candidate.known and ports_within(rule, candidate))
    if not wide or not rule.known:
        return ()
    for candidate in wide:
        if candidate.everyone or (rule.peers and all(peer_within(peer, (candidate,)) for peer in rule.peers)):
            return (candidate,)
    if rule.everyone or not rule.peers or not all(peer_within(peer, wide) for peer in rule.peers):
        return ()
    return tuple(candidate for candidate in wide if any(peer_within(peer, (candidate,)) for peer in rule.peers))
