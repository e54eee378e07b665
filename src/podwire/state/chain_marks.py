"""Owner marks of iptables: the chains and jumps of each part of podwire.

Chains of Services have kube-proxy's names, so an empty chain of ``nat`` marks them as podwire's (``PODWIRE-PROXY``,
``PODWIRE-IPVS``). Two modes use chains of the same name (``KUBE-SERVICES``). While one mode replaces another, both
marks are in the kernel for a moment; a chain of both then belongs to the new mode, and the old mode does not delete it.
Chains of policies begin with ``PODWIRE-`` and need no further mark; nor do those of masquerade.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from podwire.state.iptables import ChainKey, Rules, Ruleset

IPTABLES_MARK = "PODWIRE-PROXY"
IPVS_MARK = "PODWIRE-IPVS"
"""Empty chains of ``nat`` that mark the chains of a mode."""

MARK_CHAINS = (IPTABLES_MARK, IPVS_MARK)

KUBE_PROXY_MARK = "KUBE-PROXY-CANARY"
"""The chain by which kube-proxy detects that its rules were removed."""

SHARED_NAMES: frozenset[ChainKey] = frozenset((
    ("nat", "KUBE-SERVICES"), ("nat", "KUBE-MARK-MASQ"), ("nat", "KUBE-POSTROUTING"), ("filter", "KUBE-FORWARD"),
))  # fmt: skip
"""Chains that several modes use."""


class ChainMark(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of one owner, by table and name."""

    mark: str = ""
    """The empty chain of ``nat`` without which no chain belongs to the owner; empty: the names decide."""
    tables: tuple[str, ...]
    """The tables in the order in which a full load writes them."""
    constant: Mapping[str, frozenset[str]] = {}
    """Names of chains, by table."""
    prefixes: Mapping[str, tuple[str, ...]] = {}
    """Prefixes of chain names, by table."""
    free: frozenset[ChainKey] = frozenset()
    """Chains whose rules exclude each other, so that their order has no effect."""
    free_prefixes: Mapping[str, tuple[str, ...]] = {}
    """Prefixes of the names of further such chains, by table."""
    first: bool = False
    """Whether the jumps must precede all rules of other owners; otherwise their position is free."""
    last: bool = False
    """Whether the jumps must follow all rules of other owners but one that drops or rejects every packet."""
    is_tail: Callable[[str], bool] = lambda rule: False
    """Whether a rule of a free chain must follow the other rules."""

    def owns(self, table: str, chain: str) -> bool:
        """Whether a chain is the owner's (or kube-proxy's) by its name."""
        return chain in self.constant.get(table, ()) or chain.startswith(self.prefixes.get(table, ()))

    def marks(self, saved: Mapping[str, Iterable[str]]) -> bool:
        """Whether the mark is among these chains by table; without a mark chain: whether a name is the owner's."""
        if self.mark:
            return self.mark in saved.get("nat", ())
        return any(self.owns(table, chain) for table in self.tables for chain in saved.get(table, ()))

    def beside(self, marks: frozenset[str]) -> "ChainMark":
        """The mark without the chains of other modes whose marks are in the kernel too."""
        if not marks - {self.mark}:
            return self
        own_chains = {
            table: frozenset(name for name in names if (table, name) not in SHARED_NAMES)
            for table, names in self.constant.items()
        }
        return msgspec.structs.replace(self, constant=own_chains)

    def is_free(self, key: ChainKey) -> bool:
        """Whether the order of the rules of a chain has no effect."""
        return key in self.free or key[1].startswith(self.free_prefixes.get(key[0], ()))

    def canonical(self, key: ChainKey, rules: Sequence[str]) -> Rules:
        """The rules of a chain in an order that does not depend on the order of their creation."""
        if not self.is_free(key):
            return tuple(rules)
        end = len(rules)
        while end and self.is_tail(rules[end - 1]):
            end -= 1
        return (*sorted(rules[:end]), *rules[end:])

    def equal(self, key: ChainKey, rules: Sequence[str], other: Sequence[str]) -> bool:
        """Whether two lists of rules have the same effect."""
        if len(rules) != len(other):
            return False
        return tuple(rules) == tuple(other) or self.canonical(key, rules) == self.canonical(key, other)


SERVICE_PARTS, NODE_PORT_PARTS = "KUBE-SVC-ADDRESSES", "KUBE-SVC-NODEPORTS"
"""The beginning of the names of parts of ``KUBE-SERVICES`` and ``KUBE-NODEPORTS`` in table ``nat``."""

_DIVIDED = ("KUBE-SERVICES-", "KUBE-EXTERNAL-SERVICES-", "KUBE-PROXY-FIREWALL-", "KUBE-NODEPORTS-", "KUBE-CLUSTER-IPS-")
"""Likewise in table ``filter``."""

PROXY_IPTABLES = ChainMark(
    mark=IPTABLES_MARK,
    tables=("nat", "filter"),
    constant={
        "nat": frozenset((IPTABLES_MARK, KUBE_PROXY_MARK, "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ",
                          "KUBE-MARK-OUTSIDE", "KUBE-POSTROUTING")),
        "filter": frozenset((KUBE_PROXY_MARK, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS",
                             "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-CLUSTER-IPS", "KUBE-REFUSE",
                             "KUBE-INVALID", "KUBE-LOOPBACK")),
    },
    prefixes={"nat": ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"), "filter": _DIVIDED},
    free_prefixes={"nat": (f"{SERVICE_PARTS}-", f"{NODE_PORT_PARTS}-"), "filter": _DIVIDED},
    free=frozenset((
        ("nat", "KUBE-SERVICES"), ("nat", "KUBE-NODEPORTS"), ("filter", "KUBE-SERVICES"),
        ("filter", "KUBE-EXTERNAL-SERVICES"), ("filter", "KUBE-PROXY-FIREWALL"), ("filter", "KUBE-NODEPORTS"),
        ("filter", "KUBE-CLUSTER-IPS"),
    )),
    is_tail=lambda rule: rule.endswith((" -j KUBE-NODEPORTS", " -j KUBE-CLUSTER-IPS", 'of no service" -j DROP')),
)  # fmt: skip
"""Services in mode ``iptables``. In a full load rules that translate come before rules that reject."""

PROXY_IPVS = ChainMark(
    mark=IPVS_MARK,
    tables=("nat", "filter", "mangle"),
    constant={
        "nat": frozenset((IPVS_MARK, "KUBE-SERVICES", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-EXTERNAL-LOCAL",
                          "KUBE-LOCAL-INSIDE", "KUBE-LOCAL-OUTSIDE", "KUBE-MARK-MASQ", "KUBE-MARK-OUTSIDE-PODS",
                          "KUBE-POSTROUTING")),
        "filter": frozenset(("KUBE-FORWARD", "KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-INVALID",
                             "KUBE-IPVS-REFUSE")),
        "mangle": frozenset(("KUBE-PROXY-FIREWALL", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-DROP-OUTSIDE")),
    },
    free=frozenset((("nat", "KUBE-LOCAL-INSIDE"), ("nat", "KUBE-LOCAL-OUTSIDE"))),
)  # fmt: skip
"""Services in mode ``ipvs``. In a full load rules that translate come before rules that reject."""

POLICY = ChainMark(tables=("mangle",), prefixes={"mangle": ("PODWIRE-",)}, first=True)
"""Network policies in mode ``iptables``."""

MASQUERADE_CHAIN, MASQUERADE_PODS_CHAIN = "PODWIRE-MASQUERADE", "PODWIRE-MASQUERADE-PODS"

MASQUERADE = ChainMark(tables=("nat",), constant={"nat": frozenset((MASQUERADE_CHAIN, MASQUERADE_PODS_CHAIN))})
"""Masquerade of routing in the form ``iptables``."""

FORWARD_CHAIN = "PODWIRE-FORWARD"

FORWARD = ChainMark(tables=("filter",), constant={"filter": frozenset((FORWARD_CHAIN,))}, last=True)
"""Packets of pods through a firewall of iptables that forwards none. What other rules drop stays dropped."""

CHAIN_MARKS: list[ChainMark] = [PROXY_IPTABLES, PROXY_IPVS, POLICY, MASQUERADE, FORWARD]
"""Every owner of chains."""


def chain_mark(rulesets: Iterable[Ruleset]) -> ChainMark:
    """The mark of these tables' owner; without one a mark of exactly these chains."""
    chains: dict[str, set[str]] = {}
    for ruleset in rulesets:
        chains.setdefault(ruleset.table, set()).update(ruleset.chains)
    exact = ChainMark(tables=tuple(chains), constant={table: frozenset(names) for table, names in chains.items()})
    return next((mark for mark in CHAIN_MARKS if mark.marks(chains)), exact)
