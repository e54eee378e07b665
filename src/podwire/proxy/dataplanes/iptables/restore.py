"""Changes as text for ``iptables-restore --noflush`` (pure).

iptables-restore changes each table atomically, but one table after the other. So a text adds rules that refuse in table
``filter`` before it removes the translation in table ``nat``, and removes them after it adds the translation: a Service
that gets its first endpoint or loses its last endpoint always answers. Chains that the text does not name stay
unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from podwire.proxy.dataplanes.iptables.layout import SHARED
from podwire.state.chain_marks import NODE_PORT_PARTS, PROXY_IPTABLES, SERVICE_PARTS
from podwire.state.iptables import ChainKey, Rules, Ruleset
from podwire.state.iptables_diff import Saved, chains_text, document, repair

Value = TypeVar("Value")


class IptablesDelta(msgspec.Struct, frozen=True):
    """A change of the rules of Services in one family."""

    chains: dict[str, Rules] = {}
    """Chains of table ``nat`` to write."""
    removed: dict[str, None] = {}
    """Chains of table ``nat`` to delete; no rule leads to them any more."""
    rewrite: dict[ChainKey, Rules] = {}
    """Shared chains and parts of them to write."""
    created: dict[ChainKey, Rules] = {}
    """Parts that did not exist."""
    dropped: dict[ChainKey, None] = {}
    """Parts to delete."""
    insert: dict[ChainKey, dict[str, None]] = {}
    """Rules to insert into shared chains and parts."""
    delete: dict[ChainKey, dict[str, None]] = {}
    """Rules to delete from shared chains and parts."""

    def text(self) -> str:
        """The input of iptables-restore; empty when nothing changes."""
        return document(
            (
                ("filter", (*chains_text(_of("filter", self.created)), *self._insertions("filter"))),
                ("nat", self._nat()),
                ("filter", chains_text(_of("filter", self.rewrite))),
                ("filter", (*self._deletions("filter"), *self._drops("filter"))),
            )
        )

    def _insertions(self, table: str) -> Iterator[str]:
        for chain, rules in _of(table, self.insert).items():
            yield from (f"-I {chain} {rule}" for rule in rules)

    def _deletions(self, table: str) -> Iterator[str]:
        for chain, rules in _of(table, self.delete).items():
            yield from (f"-D {chain} {rule}" for rule in rules)

    def _drops(self, table: str) -> Iterator[str]:
        dropped = _of(table, self.dropped)
        yield from chains_text(dict.fromkeys(dropped, ()))
        yield from (f"-X {chain}" for chain in dropped)

    def _nat(self) -> Iterator[str]:
        written = {**_of("nat", self.rewrite), **_of("nat", self.created), **self.chains}
        removed = (*self.removed, *_of("nat", self.dropped))
        yield from chains_text({**written, **dict.fromkeys(removed, ())})
        yield from self._deletions("nat")
        yield from self._insertions("nat")
        yield from (f"-X {chain}" for chain in removed)


def _of(table: str, values: Mapping[ChainKey, Value]) -> dict[str, Value]:
    """The values of one table, by chain."""
    return {chain: value for (of, chain), value in values.items() if of == table}


def split_repair(saved: Saved, desired: Iterable[Ruleset]) -> Iterator[str]:
    """The texts that together have the effect of the text of :func:`repair`; a small change is one text.

    The time of iptables-restore (kind ``nft``) grows with the square of the number of chains in one text. So chains of
    Services are written first, in texts of limited size, each chain after the chains that it leads to. No packet
    reaches a new chain before the last text, which has all other changes and the deletions.
    """
    rulesets = tuple(desired)
    nat = next(ruleset for ruleset in rulesets if ruleset.table == "nat")
    held = saved.get("nat", {})
    changed = [
        chain
        for chain, rules in nat.chains.items()
        if ("nat", chain) not in SHARED and tuple(held.get(chain, ("",))) != rules
    ]
    if len(changed) > CHAINS_PER_TEXT:
        changed.sort(key=_rank)
        for first in range(0, len(changed), CHAINS_PER_TEXT):
            batch = changed[first : first + CHAINS_PER_TEXT]
            yield document([("nat", chains_text({chain: nat.chains[chain] for chain in batch}))])
        saved = {**saved, "nat": {**held, **{chain: nat.chains[chain] for chain in changed}}}
    if last := repair(saved, rulesets, PROXY_IPTABLES):
        yield last


CHAINS_PER_TEXT = 300
"""Enough for 100 Services with two endpoints; measured with 1,000 Services: 600 cost a seventh more, one text twice."""

_PARTS = (f"{SERVICE_PARTS}-", f"{NODE_PORT_PARTS}-")
_RANKS = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-")


def _rank(chain: str) -> int:
    """The rank of a chain: a chain leads only to chains of lower rank, a constant chain to no chain of a Service."""
    if chain.startswith(_PARTS):
        return len(_RANKS) + 1
    return next((rank for rank, prefix in enumerate(_RANKS, 1) if chain.startswith(prefix)), 0)
