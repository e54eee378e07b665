"""What other programs have at the hooks forward and input, as routing reads it."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network

import msgspec

from podwire.state.iptables_diff import is_refusal

CHAIN = "FORWARD"
"""The chain of iptables at the hook forward."""
INPUT = "INPUT"
"""The chain of iptables at the hook input."""


class FirewallChain(msgspec.Struct, frozen=True, gc=False):
    """A base chain of one kind and family of iptables: its policy, and the rules of the table by chain."""

    policy: str
    chains: Mapping[str, Sequence[str]]
    name: str = CHAIN

    @property
    def refuses(self) -> bool:
        """Whether packets that no rule accepts are dropped."""
        return self.policy != "ACCEPT" or any(map(is_refusal, self.chains.get(self.name, ())))


class ForeignChain(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A base chain of nftables; ``text`` has all rules of its table, as far as they could be read."""

    family: str
    table: str
    name: str
    policy: str
    last_rule: str = ""
    text: str = ""

    @property
    def refuses_the_rest(self) -> bool:
        """Whether packets that no rule accepts are dropped."""
        return self.policy == "drop" or self.last_rule.startswith(("drop", "reject"))

    def refuses(self, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
        """Whether the chain drops packets of pods, as far as it can be told.

        A table that names one of the networks is assumed to accept its packets.
        """
        return self.refuses_the_rest and not any(str(network) in self.text for network in networks)

    def __str__(self) -> str:
        return f"chain {self.name} of table {self.family} {self.table}"
