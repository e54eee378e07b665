"""Whose a chain of iptables is: by its name, where the mode's mark says that the names are ours (pure).

Modes have chains of the same name (``KUBE-SERVICES``), as kube-proxy's have. While one mode follows another both marks
are there for a moment; a chain that both have then belongs to the one that comes, and the one that goes leaves it.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from podwire.state.iptables import Rules
from podwire.state.iptables_diff import ChainKey

IPTABLES_MARK = "PODWIRE-PROXY"
IPVS_MARK = "PODWIRE-IPVS"
"""Empty chains of ``nat`` that say whose the others are: kube-proxy's have the same names."""

MARKS = (IPTABLES_MARK, IPVS_MARK)

SHARED_NAMES: frozenset[ChainKey] = frozenset((
    ("nat", "KUBE-SERVICES"), ("nat", "KUBE-MARK-MASQ"), ("nat", "KUBE-POSTROUTING"), ("filter", "KUBE-FORWARD"),
))  # fmt: skip
"""Chains that more than one mode has."""


def comment(text: str) -> str:
    """The match that does nothing but carry a text."""
    return f'-m comment --comment "{text}"'


def host(address: str) -> str:
    """One address, as iptables-save prints it."""
    return f"{address}/128" if ":" in address else f"{address}/32"


class Ownership(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of one mode."""

    mark: str
    tables: tuple[str, ...]
    """In the order in which a whole load writes them."""
    constant: Mapping[str, frozenset[str]]
    """Chains that are ours by name, by table; others that begin with KUBE- may be kubelet's."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of the names of chains of single Services, in ``nat``."""
    free: frozenset[ChainKey] = frozenset()
    """Chains whose rules exclude each other, so that their order says nothing."""
    first: bool = False
    """Jumps stand where they were put; rules of others may come before them."""
    is_tail: Callable[[str], bool] = lambda rule: False
    """Whether a rule of such a chain must stand behind the others."""

    def ours(self, table: str, chain: str) -> bool:
        """Whether a chain is the mode's (or kube-proxy's) by its name."""
        return chain in self.constant.get(table, ()) or (
            table == "nat" and bool(self.prefixes) and chain.startswith(self.prefixes)
        )

    def beside(self, marks: frozenset[str]) -> "Ownership":
        """What is left of it where the marks of other modes are there too."""
        if not marks - {self.mark}:
            return self
        rest = {
            table: frozenset(name for name in names if (table, name) not in SHARED_NAMES)
            for table, names in self.constant.items()
        }
        return msgspec.structs.replace(self, constant=rest)

    def canonical(self, key: ChainKey, rules: Sequence[str]) -> Rules:
        """Rules of a chain in an order that does not tell how they came there."""
        if key not in self.free:
            return tuple(rules)
        end = len(rules)
        while end and self.is_tail(rules[end - 1]):
            end -= 1
        return (*sorted(rules[:end]), *rules[end:])

    def equal(self, key: ChainKey, one: Sequence[str], other: Sequence[str]) -> bool:
        """Whether two lists of rules do the same."""
        return len(one) == len(other) and self.canonical(key, one) == self.canonical(key, other)
