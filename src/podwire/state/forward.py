"""What other programs have at the hook forward, as routing reads it."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network

import msgspec

from podwire.state.iptables_diff import is_refusal

CHAIN = "FORWARD"
"""The chain of iptables at the hook forward."""


class ForwardChain(msgspec.Struct, frozen=True, gc=False):
    """The chain ``FORWARD`` of one kind and family of iptables: its policy, and the rules of the table by chain."""

    policy: str
    chains: Mapping[str, Sequence[str]]

    @property
    def refuses(self) -> bool:
        """Whether packets that no rule accepts are dropped."""
        return self.policy != "ACCEPT" or any(map(is_refusal, self.chains.get(CHAIN, ())))


class ForeignChain(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A chain of nftables at the hook forward; ``text`` has all rules of its table, as far as they could be read."""

    family: str
    table: str
    name: str
    policy: str
    last_rule: str = ""
    text: str = ""

    def refuses(self, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
        """Whether the chain drops packets of pods, as far as it can be told.

        A table that names one of the networks is assumed to accept its packets.
        """
        if self.policy != "drop" and not self.last_rule.startswith(("drop", "reject")):
            return False
        return not any(str(network) in self.text for network in networks)

    def __str__(self) -> str:
        return f"chain {self.name} of table {self.family} {self.table}"
