"""Changes as text for ``iptables-restore --noflush`` (pure).

That program changes a table at once or not at all, but one table after the other. So what is refused in ``filter``
begins before the translation in ``nat`` ends, and ends after it begins: a Service that gains or loses its last
endpoint is never without an answer. Chains that the text does not name stay as they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from podwire.proxy.dataplanes.iptables.layout import SHARED, ChainKey
from podwire.proxy.dataplanes.iptables.names import KUBE_PROXY_MARK, MARK, OWN_PREFIXES
from podwire.state.iptables import TABLES, Rules, Ruleset

Saved = Mapping[str, Mapping[str, Sequence[str]]]
"""Rules by chain by table, as ``state.iptables.parse_save`` gives them."""

_ORDER = ("nat", "filter")
"""A whole load translates before it refuses."""

CONSTANT: Mapping[str, frozenset[str]] = {
    "nat": frozenset((MARK, KUBE_PROXY_MARK, "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-MARK-OUTSIDE",
                      "KUBE-POSTROUTING")),
    "filter": frozenset((KUBE_PROXY_MARK, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD",
                         "KUBE-PROXY-FIREWALL", "KUBE-CLUSTER-IPS", "KUBE-REFUSE")),
}  # fmt: skip
"""Chains that are ours by name; others that begin with KUBE- may be kubelet's."""


class Delta(msgspec.Struct, frozen=True):
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
        return _document(blocks)

    def _enter(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        for key in keys:
            yield from (f"-I {key[1]} {rule}" for rule in self.insert.get(key, ()))

    def _leave(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        for key in keys:
            yield from (f"-D {key[1]} {rule}" for rule in self.delete.get(key, ()))

    def _rewritten(self, keys: Iterable[ChainKey]) -> Iterator[str]:
        yield from _chains({key[1]: self.rewrite[key] for key in keys if key in self.rewrite})

    def _nat(self, shared: list[ChainKey]) -> Iterator[str]:
        whole = {key[1]: self.rewrite[key] for key in shared if key in self.rewrite}
        flushed: dict[str, Rules] = dict.fromkeys(self.gone, ())
        yield from _chains({**whole, **self.chains, **flushed})
        yield from self._leave(shared)
        yield from self._enter(shared)
        yield from (f"-X {chain}" for chain in self.gone)


def _chains(chains: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Whole chains; naming one empties it, or makes it."""
    yield from (f":{chain} - [0:0]" for chain in chains)
    for chain, rules in chains.items():
        yield from (f"-A {chain} {rule}" for rule in rules)


def _document(blocks: Iterable[tuple[str, Iterable[str]]]) -> str:
    lines: list[str] = []
    for table, body in blocks:
        inside = list(body)
        if inside:
            lines += (f"*{table}", *inside, "COMMIT")
    return "\n".join(lines) + "\n" if lines else ""


def count_tables(text: str) -> int:
    """How many times a text changes a table."""
    return text.count("COMMIT\n")


def ours(table: str, chain: str) -> bool:
    """Whether a chain is podwire's (or kube-proxy's) by its name."""
    return chain in CONSTANT.get(table, ()) or (table == "nat" and chain.startswith(OWN_PREFIXES))


def repair(saved: Saved, wanted: Iterable[Ruleset]) -> str:
    """The text that makes the kernel hold what is wanted and nothing else of ours; empty when it does."""
    by_table = {each.table: each for each in wanted}
    return _document((table, _repair_table(saved.get(table, {}), by_table[table])) for table in _ORDER)


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
            yield _document([("nat", _chains({chain: nat.chains[chain] for chain in bulk[first : first + PART]}))])
        saved = {**saved, "nat": {**have, **{chain: nat.chains[chain] for chain in bulk}}}
    if last := repair(saved, rulesets):
        yield last


PART = 600
"""Chains in one text: 200 Services with two endpoints."""

_RANKS = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-")


def _rank(chain: str) -> int:
    """Chains lead to those of lower rank only; constant ones to none of a Service."""
    return next((rank for rank, prefix in enumerate(_RANKS, 1) if chain.startswith(prefix)), 0)


def removal(saved: Saved) -> str:
    """The text that takes away all that is ours."""
    nothing = {table: Ruleset(family="", table=table) for table in TABLES}
    return repair(saved, nothing.values())


def _repair_table(saved: Mapping[str, Sequence[str]], wanted: Ruleset) -> Iterator[str]:
    write: dict[str, Rules] = {}
    for chain, rules in wanted.chains.items():
        have = saved.get(chain)
        if have is None or not equal((wanted.table, chain), have, rules):
            write[chain] = rules
    gone: dict[str, Rules] = {c: () for c in saved if ours(wanted.table, c) and c not in wanted.chains}
    yield from _chains({**write, **gone})
    yield from (f"-D {chain} {rule}" for chain, rule in _surplus_jumps(saved, wanted))
    missing = [(chain, rule) for chain, rule in wanted.jumps if rule not in saved.get(chain, ())]
    yield from (f"-I {chain} {rule}" for chain, rule in reversed(missing))
    yield from (f"-X {chain}" for chain in gone)


def _surplus_jumps(saved: Mapping[str, Sequence[str]], wanted: Ruleset) -> Iterator[tuple[str, str]]:
    """Rules of others' chains that lead into ours, and should not."""
    keep = set(wanted.jumps)
    for chain, rules in saved.items():
        if ours(wanted.table, chain):
            continue
        seen: set[str] = set()
        for rule in rules:
            target = rule.rpartition(" -j ")[2].partition(" ")[0] if " -j " in rule else rule.removeprefix("-j ")
            if ours(wanted.table, target) and ((chain, rule) not in keep or rule in seen):
                yield chain, rule
            seen.add(rule)


def equal(key: ChainKey, one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of rules do the same: in shared chains only the place of the jumps matters."""
    if len(one) != len(other):
        return False
    if key not in SHARED:
        return tuple(one) == tuple(other)
    return canonical(key, one) == canonical(key, other)


def canonical(key: ChainKey, rules: Sequence[str]) -> Rules:
    """Rules of a chain in an order that does not tell how they came there."""
    if key not in SHARED:
        return tuple(rules)
    end = len(rules)
    while end and _is_tail(rules[end - 1]):
        end -= 1
    return (*sorted(rules[:end]), *rules[end:])


def _is_tail(rule: str) -> bool:
    return rule.endswith((" -j KUBE-NODEPORTS", " -j KUBE-CLUSTER-IPS", 'of no service" -j DROP'))
