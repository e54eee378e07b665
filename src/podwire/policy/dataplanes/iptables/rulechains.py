"""The chains of tables of ports, and the chains of rules (pure); :mod:`.layout` describes all chains."""

from collections.abc import Sequence

from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.layout import ChainLayout, Chains, in_set
from podwire.policy.ports import PROTOCOLS, PortRuling, PortTable, Ruling
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity, rule_identity
from podwire.state.iptables import Rules


class RuleChains:
    """The chains of one family that do not depend on pods or peers."""

    def __init__(self, layout: ChainLayout) -> None:
        self._layout = layout

    def ports(self, chain: str, table: PortTable, profile: ProfileName) -> Chains:
        """The chains of a table of ports; many ranges of one protocol become a search tree, like numbers."""
        chains: Chains = {}
        rules = []
        for protocol in PROTOCOLS:
            entries = table.of_protocol(protocol)
            protocol_name = protocol.lower()
            if len(entries) > 1:
                below = f"{chain}-{protocol_name[0]}"
                self._ranges(below, entries, profile, chains)
                rules.append(f"-p {protocol_name} -g {below}")
            elif entries[0].ruling != table.other:
                rules.append(f"-p {protocol_name} -g {_rule_chain(profile, entries[0].ruling)}")
        chains[chain] = (*rules, f"-g {_rule_chain(profile, table.other)}")
        return chains

    def _ranges(self, chain: str, entries: Sequence[PortRuling], profile: ProfileName, chains: Chains) -> None:
        protocol_name = entries[0].protocol.lower()
        if len(entries) <= _FEW:
            targets = [(entry, _rule_chain(profile, entry.ruling)) for entry in entries]
        else:
            size = -(-len(entries) // _FEW)
            targets = []
            for at in range(0, len(entries), size):
                part = entries[at : at + size]
                below = f"{chain[: chain.rindex('-') + 2]}{len(chains)}"
                chains[below] = ()
                self._ranges(below, part, profile, chains)
                targets.append((PortRuling(part[0].protocol, part[0].first, part[-1].last, part[0].ruling), below))
        *most, (_, last) = targets
        rules = (f"-p {protocol_name} -m {protocol_name} --dport {_port(entry)} -g {target}" for entry, target in most)
        chains[chain] = (*rules, f"-g {last}")

    def rule(self, hit: RuleIdentity, prefix: str, text: str) -> Rules:
        """The chain of one rule, or of a denial because no rule allows; ``prefix`` is the prefix of its log lines.

        ``text`` is for readers; that of a denial names the pods, and may change.

        Two kinds of packets pass although no rule allows them: errors that belong to a connection, and packets that
        return to their sender through a Service. The rules for them stand just before the drop.
        """
        verdict = "RETURN" if hit.ruling.accept else "DROP"
        verdict_rule = f"{names.comment(text)} -j {verdict}"
        exempt: Rules = (
            "-m conntrack --ctstate RELATED -j RETURN",
            f"-m conntrack --ctstate DNAT {in_set(self._layout.set_name('own'), 'src,dst')} -j RETURN",
            *(f"-m conntrack --ctstate DNAT {match} -j RETURN" for match in self._layout.bridge_itself),
        )
        exempt = exempt if hit.ruling.audit or not hit.ruling.accept else ()
        return (*exempt, *(self._logs(hit, prefix) if hit.logged(self._layout.log) else ()), verdict_rule)

    def _logs(self, hit: RuleIdentity, prefix: str) -> Rules:
        """The log rules: for denials each packet within the rate limit; for accepted packets the first of a connection.

        Packets that pass only because the policy is in audit are also logged later, at most once a second.
        """
        target = self._layout.log_target(prefix)
        if not hit.ruling.accept:
            return (f"{self._layout.log_limit} {target}",)
        later = f"-m conntrack ! --ctstate NEW -m limit --limit 1/sec {target}"
        return (
            f"-m conntrack --ctstate NEW {self._layout.log_limit} {target}",
            *((later,) if hit.ruling.audit else ()),
        )


_FEW = 8
"""Up to this number, ranges of ports are compared one after the other."""


def _rule_chain(profile: ProfileName, ruling: Ruling) -> str:
    return names.rule_chain(rule_identity(profile, ruling))


def _port(entry: PortRuling) -> str:
    return str(entry.first) if entry.first == entry.last else f"{entry.first}:{entry.last}"
