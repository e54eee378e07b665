"""The rules of the plugin ``firewall`` in the table ``filter`` of iptables (pure).

Chains, rules and their order are those of the reference plugin, so that the administrator's rules in CNI-ADMIN keep
their place and pods of one program can be deleted by the other. A rule is the text of iptables-save behind its chain. A
rule is there whatever its comment is: versions of the reference plugin differ in it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

Chains = Mapping[str, list[str]]
"""The rules of a table by chain."""

FORWARD, POD_CHAIN, ADMIN_CHAIN = "FORWARD", "CNI-FORWARD", "CNI-ADMIN"
STAGES = ("CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2")
_COMMENT = re.compile(r' ?-m comment --comment ("(?:[^"\\]|\\.)*"|\S+)')


class FilterEdit:
    """Collects changes of a table; :attr:`lines` are those of iptables-restore, none when nothing is missing."""

    def __init__(self, chains: Chains) -> None:
        self._rules = {chain: list(rules) for chain, rules in chains.items()}
        self.missing: list[str] = []
        """What the table lacked, as rules with their chains."""
        self.lines: list[str] = []

    def chain(self, name: str) -> None:
        """Makes a chain unless it is there; an existing one is not declared, since that would empty it."""
        if name not in self._rules:
            self._rules[name] = []
            self.missing.append(f"chain {name}")
            self.lines.append(f":{name} - [0:0]")

    def first(self, chain: str, rule: str) -> None:
        """Puts a rule first in a chain unless it is there."""
        self._add(chain, rule, "-I")

    def last(self, chain: str, rule: str) -> None:
        """Puts a rule last in a chain unless it is there."""
        self._add(chain, rule, "-A")

    def _add(self, chain: str, rule: str, verb: str) -> None:
        rules = self._rules.setdefault(chain, [])
        if plain(rule) not in map(plain, rules):
            rules.append(rule)
            self.missing.append(f"{chain} {rule}")
            self.lines.append(f"{verb} {chain} {rule}")

    def delete(self, chain: str, rule: str) -> None:
        """Deletes a rule with exactly this text if it is there."""
        if rule in self._rules.get(chain, []):
            self._rules[chain].remove(rule)
            self.lines.append(f"-D {chain} {rule}")


def plain(rule: str) -> str:
    """A rule without its comment."""
    return _COMMENT.sub("", rule).strip()


def family_of(address: str) -> str:
    """``ip`` or ``ip6``."""
    return "ip6" if ip_address(address).version == 6 else "ip"


def host(address: str) -> str:
    """An address as a network of one address."""
    return f"{ip_address(address)}/{ip_address(address).max_prefixlen}"


def admit(edit: FilterEdit, addresses: Iterable[str], admin_chain: str) -> None:
    """Accepts what pods send, and the answers to them."""
    rules = [rule for address in addresses for rule in pod_rules(address)]
    if not rules:
        return
    edit.chain(POD_CHAIN)
    edit.chain(admin_chain)
    edit.first(FORWARD, _rule("CNI firewall plugin rules", f"-j {POD_CHAIN}"))
    edit.first(POD_CHAIN, _rule("CNI firewall plugin admin overrides", f"-j {admin_chain}"))
    for rule in rules:
        edit.last(POD_CHAIN, rule)


def dismiss(edit: FilterEdit, addresses: Iterable[str]) -> None:
    """Deletes the rules of pods; chains stay, since the administrator may use them."""
    for address in addresses:
        for rule in pod_rules(address):
            edit.delete(POD_CHAIN, rule)


def isolate(edit: FilterEdit, bridge: str, policy: str) -> None:
    """Drops packets from other such bridges to a bridge, and with ``isolated`` also those between its own pods."""
    both = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
    own = f"CNI firewall plugin rules (ingressPolicy: {policy})"
    for stage in STAGES:
        edit.chain(stage)
    edit.first(FORWARD, _rule(both, f"-j {STAGES[0]}"))
    edit.first(STAGES[0], f'-i {bridge} ! -o {bridge} -m comment --comment "{own}" -j {STAGES[1]}')
    if policy == "isolated":
        edit.first(STAGES[0], f'-i {bridge} -o {bridge} -m comment --comment "{own}" -j DROP')
    edit.last(STAGES[0], _rule(both, "-j RETURN"))
    edit.first(STAGES[1], f'-o {bridge} -m comment --comment "{both}" -j DROP')
    edit.last(STAGES[1], _rule(both, "-j RETURN"))


def pod_rules(address: str) -> Iterator[str]:
    """The rules of an address."""
    yield f"-d {host(address)} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    yield f"-s {host(address)} -j ACCEPT"


def _rule(comment: str, verdict: str) -> str:
    return f'-m comment --comment "{comment}" {verdict}'
