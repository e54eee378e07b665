import msgspec

from podwire.state.chain_marks import ChainMark
from podwire.state.iptables import Ruleset
from podwire.state.iptables_diff import repair

WANTED = Ruleset(family="ip", table="mangle", chains={"MINE": ("-j DROP",)}, jumps=(("FORWARD", "-j MINE"),))


def text(*forward: str, first: bool = True) -> str:
    saved = {"mangle": {"FORWARD": list(forward), "MINE": ["-j DROP"]}}
    return repair(saved, [WANTED], ChainMark(tables=("mangle",), prefixes={"mangle": ("MINE",)}, first=first))


def test_a_jump_goes_before_rules_of_other_owners() -> None:
    assert text() == text("-j OTHER") == "*mangle\n-I FORWARD -j MINE\nCOMMIT\n"
    assert text("-j OTHER", "-j MINE") == "*mangle\n-D FORWARD -j MINE\n-I FORWARD -j MINE\nCOMMIT\n"
    assert text("-j MINE", "-j OTHER") == ""


def test_where_that_is_enough_a_jump_stays_where_it_is() -> None:
    assert text("-j OTHER", "-j MINE", first=False) == ""
    assert text("-j OTHER", first=False) == "*mangle\n-I FORWARD -j MINE\nCOMMIT\n"


def test_several_jumps_of_one_owner_come_first_together() -> None:
    both = msgspec.structs.replace(WANTED, jumps=(("FORWARD", "-i a -j MINE"), ("FORWARD", "-j MINE")))
    saved = {"mangle": {"FORWARD": ["-i a -j MINE", "-j MINE", "-j OTHER"], "MINE": ["-j DROP"]}}
    assert repair(saved, [both], ChainMark(tables=("mangle",), prefixes={"mangle": ("MINE",)}, first=True)) == ""
