from collections.abc import Sequence

import msgspec

from podwire.state.iptables import Rules, Ruleset
from podwire.state.iptables_diff import ChainKey, repair


class Mine(msgspec.Struct, frozen=True):
    """Chains that begin with MINE, in one table."""

    first: bool = True
    tables: tuple[str, ...] = ("mangle",)

    def ours(self, table: str, chain: str) -> bool:
        return table == "mangle" and chain.startswith("MINE")

    def canonical(self, _key: ChainKey, rules: Sequence[str]) -> Rules:
        return tuple(rules)

    def equal(self, _key: ChainKey, one: Sequence[str], other: Sequence[str]) -> bool:
        return tuple(one) == tuple(other)


WANTED = Ruleset(family="ip", table="mangle", chains={"MINE": ("-j DROP",)}, jumps=(("FORWARD", "-j MINE"),))


def text(*forward: str, first: bool = True) -> str:
    saved = {"mangle": {"FORWARD": list(forward), "MINE": ["-j DROP"]}}
    return repair(saved, [WANTED], Mine(first))


def test_a_jump_goes_before_the_rules_of_others() -> None:
    assert text() == text("-j OTHER") == "*mangle\n-I FORWARD -j MINE\nCOMMIT\n"
    assert text("-j OTHER", "-j MINE") == "*mangle\n-D FORWARD -j MINE\n-I FORWARD -j MINE\nCOMMIT\n"
    assert text("-j MINE", "-j OTHER") == ""


def test_where_that_is_enough_a_jump_stays_where_it_is() -> None:
    assert text("-j OTHER", "-j MINE", first=False) == ""
    assert text("-j OTHER", first=False) == "*mangle\n-I FORWARD -j MINE\nCOMMIT\n"


def test_several_jumps_of_one_owner_come_first_together() -> None:
    both = msgspec.structs.replace(WANTED, jumps=(("FORWARD", "-i a -j MINE"), ("FORWARD", "-j MINE")))
    saved = {"mangle": {"FORWARD": ["-i a -j MINE", "-j MINE", "-j OTHER"], "MINE": ["-j DROP"]}}
    assert repair(saved, [both], Mine()) == ""
