"""Changes as text for ``iptables-restore --noflush`` (pure).

That program changes a table at once or not at all, but one table after the other. So what is refused in ``filter``
begins before the translation in ``nat`` ends, and ends after it begins: a Service that gains or loses its last
endpoint is never without an answer. Chains that the text does not name stay as they are.
"""

from collections.abc import Iterable, Iterator

import msgspec

from podwire.proxy.dataplanes.iptables.layout import SHARED
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import ChainKey, Rules, Ruleset
from podwire.state.iptables_diff import Saved, chains_text, document, repair


class IptablesDelta(msgspec.Struct, frozen=True):
    """A change of what the Services of a family put into it."""

    chains: dict[str, Rules] = {}
    """Chains of ``nat`` to write whole."""
    gone: dict[str, None] = {}
    """Chains of ``nat`` that nothing leads to any more."""
    rewrite: dict[ChainKey, Rules] = {}
    """Shared chains to write whole."""
    insert: dict[ChainKey, dict[str, None]] = {}
    delete: dict[ChainKey, dict[str, None]] = {}

    def text(self) -> str:
        """The input of the program; empty when nothing changes."""
        changed = self.rewrite.keys() | self.insert.keys() | self.delete.keys()
        keys = [key for key in SHARED if key in changed]
        refusing = [key for key in keys if key[0] == "filter"]
        blocks = (
            ("filter", self._enter(key for key in refusing if key not in self.rewrite)),
            ("nat", self._nat([key for key in keys if key[0] == "nat"])),
            ("filter", self._rewritten(refusing)),
            ("filter", self._leave(refusing)),
        )
        return document(blocks)

    def _enter(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        for key in keys:
            yield from (f"-I {key[1]} {rule}" for rule in self.insert.get(key, ()))

    def _leave(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        for key in keys:
            yield from (f"-D {key[1]} {rule}" for rule in self.delete.get(key, ()))

    def _rewritten(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        yield from chains_text({key[1]: self.rewrite[key] for key in keys if key in self.rewrite})

    def _nat(self, shared: list[ChainKey]) -> Iterator[str]:
        whole = {key[1]: self.rewrite[key] for key in shared if key in self.rewrite}
        flushed: dict[str, Rules] = dict.fromkeys(self.gone, ())
        yield from chains_text({**whole, **self.chains, **flushed})
        yield from self._leave(shared)
        yield from self._enter(shared)
        yield from (f"-X {chain}" for chain in self.gone)


def repair_in_parts(saved: Saved, wanted: Iterable[Ruleset]) -> Iterator[str]:
    """The texts that together do what :func:`repair` says, none of them large; no more than one when that is little.

    iptables-restore of the nft kind takes a time that grows with the square of the chains in one text. Those of
    Services are written first, each after the ones it leads to; nothing leads to them yet, or what leads to them is
    as right as before. The last text has the rest, and what is gone.
    """
    rulesets = tuple(wanted)
    nat = next(each for each in rulesets if each.table == "nat")
    have = saved.get("nat", {})
    bulk = [
        chain
        for chain, rules in nat.chains.items()
        if ("nat", chain) not in SHARED and tuple(have.get(chain, ("",))) != rules
    ]
    if len(bulk) > PART:
        bulk.sort(key=_rank)
        for first in range(0, len(bulk), PART):
            yield document([("nat", chains_text({chain: nat.chains[chain] for chain in bulk[first : first + PART]}))])
        saved = {**saved, "nat": {**have, **{chain: nat.chains[chain] for chain in bulk}}}
    if last := repair(saved, rulesets, PROXY_IPTABLES):
        yield last


PART = 600
"""Chains in one text: 200 Services with two endpoints."""

_RANKS = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-")


def _rank(chain: str) -> int:
    """Chains lead to those of lower rank only; constant ones to none of a Service."""
    return next((rank for rank, prefix in enumerate(_RANKS, 1) if chain.startswith(prefix)), 0)
