"""Which firewalls of other programs forward no packets of pods, and the rules of iptables that let these pass (pure).

A packet passes the rules of every program, and what one drops is dropped. Docker sets the policy of iptables' chain
``FORWARD`` to DROP; other firewalls end the chain with a rule that rejects the rest. Only then, and in that kind of
iptables, ``FORWARD`` gets a jump to the chain ``PODWIRE-FORWARD``, which accepts packets from and to the pod networks
of the cluster. The jump comes behind all other rules (and before one that refuses the rest), so a packet that another
rule drops stays dropped. A table of nftables that drops what it does not know cannot be changed from outside: it is
reported.
"""

from collections.abc import Iterable, Iterator, Sequence

from podwire.routing.nodes import Network
from podwire.state.chain_marks import FORWARD_CHAIN
from podwire.state.firewalls import CHAIN, FirewallChain, ForeignChain
from podwire.state.iptables import Ruleset

_VERSIONS = {"ip": 4, "ip6": 6}
_COMMENT = '-m comment --comment "podwire routing"'
_JUMP = f"{_COMMENT} -j {FORWARD_CHAIN}"


def forward_ruleset(family: str, networks: Sequence[Network], present: FirewallChain | None) -> Ruleset:
    """The desired rules of a family; empty where nothing is refused, or where the family has no pods."""
    own = [network for network in networks if network.version == _VERSIONS[family]]
    if present is None or not present.refuses or not own:
        return Ruleset(family=family, table="filter")
    rules = tuple(f"-{side} {network} {_COMMENT} -j ACCEPT" for network in own for side in ("s", "d"))
    return Ruleset(family=family, table="filter", chains={FORWARD_CHAIN: rules}, jumps=((CHAIN, _JUMP),))


def blockers(chains: Iterable[ForeignChain], networks: Sequence[Network]) -> Iterator[str]:
    """The rules that refuse packets of pods and that podwire cannot change, as text with advice."""
    for chain in chains:
        if chain.refuses(networks):
            yield f"{chain} drops packets that it does not know, {_advice(chain, networks)}"


def _advice(chain: ForeignChain, networks: Sequence[Network]) -> str:
    if chain.table == "firewalld":
        return f"pods' among them: {firewalld_sources(networks)}"
    shown = ", ".join(map(str, networks))
    return f"pods' among them: accept packets from and to {shown} there"


def firewalld_sources(networks: Iterable[Network]) -> str:
    """The commands that make firewalld accept all packets from networks."""
    sources = " ".join(f"--add-source={network}" for network in networks)
    return f"firewall-cmd --permanent --zone=trusted {sources}; firewall-cmd --reload"
