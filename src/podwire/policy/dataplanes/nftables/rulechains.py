"""The chains and maps of tables of ports, and the chains of rules (pure); :mod:`.layout` describes the table."""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from podwire.policy.dataplanes.nftables.layout import PORTS, RULE, TableLayout, comment_text, digest
from podwire.policy.ports import PROTOCOLS, PortRuling, PortTable, Ruling
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity, rule_identity
from podwire.state.nft import Chain, Element, Set
from podwire.state.nft_rules import Verdict


class RuleChains:
    """The chains and maps of one family that do not depend on pods or peers."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout

    @property
    def _to_itself(self) -> tuple[str, ...]:
        """The rules that accept what a pod sends to itself through a Service: policies do not apply to that."""
        bridged = (f"ct status dnat {self._layout.bridge_itself} accept",) if self._layout.bridges else ()
        return f"ct status dnat oifname . {self._layout.family} saddr @own accept", *bridged

    def ports_sets(self, name: str, table: PortTable, profile: ProfileName) -> tuple[Set, ...]:
        """The maps of a table of ports, one for each protocol whose ports have different rulings.

        A map of single ports can be changed while packets use it. The kernel finds no interval while another one with
        the same first port takes its place, so a map of ranges is never changed.
        """
        sets = []
        for protocol in PROTOCOLS:
            entries = table.of_protocol(protocol)
            if len(entries) > 1:
                singles = table.single_ports(protocol)
                flags = ("interval",) if singles is None else ()
                declared = Set(name=map_name(name, protocol), key=("inet_service",), data=("verdict",), flags=flags)
                if singles is None:
                    sets.append(declared.with_elements(_ports_element(entry, profile) for entry in entries))
                else:
                    elements = (port_element(port, ruling, profile) for port, ruling in singles.ports.items())
                    sets.append(declared.with_elements(elements))
        return tuple(sets)

    def ports_chain(self, name: str, table: PortTable, profile: ProfileName) -> Chain:
        """The chain of a table of ports."""
        return Chain(name=name, rules=self._layout.rules(*ports_texts(name, table, profile)))

    def rule_chain(self, hit: RuleIdentity, text: str) -> Chain:
        """The chain of one rule, or of a denial because no rule allows; ``text`` is for readers.

        The text of a denial names the pods and may change, so it is the comment of a rule: that of a chain cannot
        change.
        """
        name, verdict = rule_name(hit), "accept" if hit.ruling.accept else "drop"
        exempt = ("ct state related accept", *self._to_itself)
        exempt = exempt if hit.ruling.audit or not hit.ruling.accept else ()
        comment = comment_text(text)
        tail, chain_comment = (f' comment "{comment}"', "") if hit.profile is not None else ("", comment)
        texts = (*exempt, *(self._logs(hit, name) if hit.logged(self._layout.log) else ()), f"counter {verdict}{tail}")
        return Chain(name=name, comment=chain_comment, rules=self._layout.rules(*texts))

    def _logs(self, hit: RuleIdentity, name: str) -> tuple[str, ...]:
        """The log rules: for denials each packet within the rate limit; for accepted packets the first of a connection.

        Packets that pass only because the policy is in audit are also logged later, at most once a second.
        """
        limit = f"limit rate {self._layout.log.rate}/second burst {self._layout.log.burst} packets"
        log = f'log prefix "{name}" group {self._layout.log.group}'
        if not hit.ruling.accept:
            return (f"{limit} {log}",)
        later = f"ct state != new limit rate 1/second {log}"
        return (f"ct state new {limit} {log}", *((later,) if hit.ruling.audit else ()))


Rests = Mapping[str, Ruling | None]
"""By protocol: the ruling of all ports that are not single elements of a map; None: there is a map of ranges."""


def rest_of(table: PortTable, protocol: str) -> Ruling | None:
    """The ruling of all ports of a protocol but single ones; None: there are ranges as well."""
    singles = table.single_ports(protocol)
    return singles.rest if singles is not None else None


def rests_of(table: PortTable) -> Rests:
    """The rulings that maps of single ports leave to the rules of the chain."""
    return {protocol: rest_of(table, protocol) for protocol in PROTOCOLS}


def ports_texts(name: str, table: PortTable, profile: ProfileName, rests: Rests | None = None) -> tuple[str, ...]:
    """The rules of the chain of a table of ports; ``rests`` are those of the table, if they are known."""
    rests = rests or rests_of(table)

    def chain_of(ruling: Ruling) -> str:
        return rule_name(rule_identity(profile, ruling))

    texts = []
    for protocol in PROTOCOLS:
        entries, word = table.of_protocol(protocol), protocol.lower()
        rest: Ruling | None = entries[0].ruling
        if len(entries) > 1:
            texts.append(f"{word} dport vmap @{map_name(name, protocol)}")
            rest = rests[protocol]
        if rest is not None and rest != table.other:
            texts.append(f"meta l4proto {word} goto {chain_of(rest)}")
    return *texts, f"goto {chain_of(table.other)}"


def map_name(name: str, protocol: str) -> str:
    """The name of the map of a table's ports of one protocol."""
    return f"{name}-{protocol.lower()}"


def port_element(port: int, ruling: Ruling, profile: ProfileName) -> tuple[bytes, Element]:
    """The element of a single port."""
    return port.to_bytes(2, "big"), Element(verdict=Verdict("goto", rule_name(rule_identity(profile, ruling))))


def _ports_element(entry: PortRuling, profile: ProfileName) -> tuple[bytes, Element]:
    """The element of a range of ports."""
    first, element = port_element(entry.first, entry.ruling, profile)
    return first, msgspec.structs.replace(element, end=entry.last.to_bytes(2, "big"))


def ports_name(table: PortTable, profile: ProfileName, attempt: int = 0) -> str:
    """The name of a new chain of a table of ports; another attempt gives another name."""
    return f"{PORTS}{digest(msgspec.json.encode((profile, table, attempt)).decode())}"


@lru_cache(maxsize=1 << 14)
def rule_name(hit: RuleIdentity) -> str:
    """The name of the chain of a rule."""
    return f"{RULE}{digest(msgspec.json.encode(hit).decode())}"
