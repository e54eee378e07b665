"""Changes as text for ``iptables-restore --noflush`` (pure).

iptables-restore changes each table atomically, but one table after the other. So a text adds rules that refuse in table
``filter`` before it removes the translation in table ``nat``, and removes them after it adds the translation: a Service
that gets its first endpoint or loses its last endpoint always answers. Chains that the text does not name stay
unchanged.
"""

from collections.abc import Iterable, Iterator

import msgspec

from podwire.proxy.dataplanes.iptables.layout import SHARED
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import ChainKey, Rules, Ruleset
from podwire.state.iptables_diff import Saved, chains_text, document, repair


class IptablesDelta(msgspec.Struct, frozen=True):
    """A change of the rules of Services in one family."""

    chains: dict[str, Rules] = {}
    """Chains of table ``nat`` to write."""
    removed: dict[str, None] = {}
    """Chains of table ``nat`` to delete; no rule leads to them any more."""
    rewrite: dict[ChainKey, Rules] = {}
    """Shared chains to write."""
    insert: dict[ChainKey, dict[str, None]] = {}
    """Rules to insert into shared chains."""
    delete: dict[ChainKey, dict[str, None]] = {}
    """Rules to delete from shared chains."""

    def text(self) -> str:
        """The input of iptables-restore; empty when nothing changes."""
        changed = self.rewrite.keys() | self.insert.keys() | self.delete.keys()
        keys = [key for key in SHARED if key in changed]
        refusing = [key for key in keys if key[0] == "filter"]
        blocks = (
            ("filter", self._insertions(key for key in refusing if key not in self.rewrite)),
            ("nat", self._nat([key for key in keys if key[0] == "nat"])),
            ("filter", self._rewrites(refusing)),
            ("filter", self._deletions(refusing)),
        )
        return document(blocks)

    def _insertions(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        for key in keys:
            yield from (f"-I {key[1]} {rule}" for rule in self.insert.get(key, ()))

    def _deletions(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        for key in keys:
            yield from (f"-D {key[1]} {rule}" for rule in self.delete.get(key, ()))

    def _rewrites(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        yield from chains_text({key[1]: self.rewrite[key] for key in keys if key in self.rewrite})

    def _nat(self, shared: list[ChainKey]) -> Iterator[str]:
        whole = {key[1]: self.rewrite[key] for key in shared if key in self.rewrite}
        flushed: dict[str, Rules] = dict.fromkeys(self.removed, ())
        yield from chains_text({**whole, **self.chains, **flushed})
        yield from self._deletions(shared)
        yield from self._insertions(shared)
        yield from (f"-X {chain}" for chain in self.removed)


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

_RANKS = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-")


def _rank(chain: str) -> int:
    """The rank of a chain: a chain leads only to chains of lower rank, a constant chain to no chain of a Service."""
    return next((rank for rank, prefix in enumerate(_RANKS, 1) if chain.startswith(prefix)), 0)
