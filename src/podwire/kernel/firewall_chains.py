"""The firewalls of other programs at the hooks forward and input: read, and podwire's rules in iptables written.

A reading costs two processes for each kind of iptables with a table ``filter``, 3 ms each. The check for possible
changes since the last reading costs 0.1 ms: the generation of nf_tables, and the rules of legacy tables
(:mod:`podwire.kernel.legacy_rules`: more with thousands of rules there).
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from podwire.errors import KernelError, Unsupported
from podwire.kernel.iptables import FAMILIES, Iptables, Kind, Programs, find, legacy_tables, nft_tables
from podwire.kernel.legacy_rules import LegacyTables
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.state.chain_marks import FORWARD
from podwire.state.firewalls import CHAIN, INPUT, FirewallChain, ForeignChain
from podwire.state.iptables import Ruleset, parse_save
from podwire.state.iptables_diff import repair

_TABLE = "filter"
_POLICY = re.compile(rf"^:({CHAIN}|{INPUT}) (\w+)", re.M)
_IPTABLES = frozenset((family, _TABLE) for family in FAMILIES)
_OWN = "podwire"
_NFT_FAMILIES = ("inet", "ip", "ip6")


class FilterTables(msgspec.Struct, frozen=True):
    """The tables ``filter`` of one kind of iptables, by family."""

    programs: Programs
    chains: Mapping[str, FirewallChain]
    """The chains ``FORWARD``."""
    inputs: Mapping[str, FirewallChain] = {}
    """The chains ``INPUT``."""


class FirewallChains:
    """The hooks forward and input of one network namespace (None: that of the calling thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._legacy: LegacyTables | None = None
        self._nft: Nft | None = None
        try:
            self._legacy = LegacyTables(netns_path, (_TABLE,))
            self._nft = Nft(netns_path)
        except KernelError:
            return  # A kernel without nf_tables has no generation, and no tables of it.

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        for opened in (self._legacy, self._nft):
            if opened is not None:
                opened.close()

    def fingerprint(self) -> object:
        """A value that differs when a rule or a policy may have changed.

        A change that keeps the size of a legacy table does not show where the table is too large for a digest.

        Raises: KernelError.
        """
        generation = self._nft.generation() if self._nft is not None else 0
        return generation, self._legacy.digests() if self._legacy is not None else {}

    def tables(self) -> tuple[FilterTables, ...]:
        """The tables ``filter`` that exist, of both kinds of iptables.

        Raises: KernelError.
        """
        kinds: tuple[tuple[Kind, bool], ...] = (
            ("nft", bool(_IPTABLES & nft_tables(self._netns_path))),
            ("legacy", _TABLE in legacy_tables(self._netns_path)),
        )
        return tuple(self._read(programs) for kind, used in kinds if used and (programs := find(kind)) is not None)

    def _read(self, programs: Programs) -> FilterTables:
        chains: dict[str, dict[str, FirewallChain]] = {CHAIN: {}, INPUT: {}}
        for family in FAMILIES:
            with Iptables(family, programs, self._netns_path) as tool:
                text = tool.save(_TABLE)
            rules = parse_save(text).get(_TABLE, {})
            for name, policy in _POLICY.findall(text):
                chains[name][family] = FirewallChain(policy, rules, name)
        return FilterTables(programs, chains[CHAIN], chains[INPUT])

    def foreign(self, hook: str = "forward") -> tuple[ForeignChain, ...]:
        """The chains of nftables at the hook that belong neither to podwire nor to iptables.

        Raises: KernelError.
        """
        return tuple(self._foreign(hook)) if self._nft is not None else ()

    def _foreign(self, hook: str) -> Iterator[ForeignChain]:
        assert self._nft is not None, "the caller checks it"
        for family, table in self._nft.tables():
            if family not in _NFT_FAMILIES or (family, table) in _IPTABLES or table.startswith(_OWN):
                continue
            chains = self._nft.chains(family, table)
            hooked = [chain for chain in chains if chain.hook == hook and chain.type == _TABLE]
            if not hooked:
                continue
            try:
                read = self._nft.read(family, table)
            except Unsupported:
                read = None
            rules = {chain.name: list(map(str, chain.rules)) for chain in read.chains} if read is not None else {}
            text = "\n".join(read.lines()) if read is not None else ""
            for chain in hooked:
                last = (rules.get(chain.name) or [""])[-1]
                yield ForeignChain(
                    family=family, table=table, name=chain.name, policy=chain.policy, last_rule=last, text=text
                )

    def hold(self, table: FilterTables, ruleset: Ruleset) -> str:
        """Makes one family of a table hold podwire's rules; returns the text for iptables-restore.

        Raises: KernelError.
        """
        present = table.chains.get(ruleset.family)
        text = repair({_TABLE: present.chains} if present is not None else {}, (ruleset,), FORWARD)
        if text:
            with Iptables(ruleset.family, table.programs, self._netns_path) as tool:
                tool.restore(text)
        return text
