"""Whose chains are whose, and what follows of it for texts."""

from podwire.proxy.xtables.ownership import IPTABLES_MARK, IPVS_MARK, Ownership, comment, host
from podwire.state.iptables import Ruleset
from podwire.state.iptables_diff import count_tables, document, own_part, removal, repair, target_of

MINE = Ownership(
    mark=IPVS_MARK,
    tables=("nat", "mangle"),
    constant={"nat": frozenset((IPVS_MARK, "KUBE-SERVICES", "OWN", "FREE")), "mangle": frozenset(("OWN",))},
    free=frozenset((("nat", "FREE"),)),
    is_tail=lambda rule: rule == "(last)",
)
WANTED = (
    Ruleset(
        family="ip", table="nat", chains={IPVS_MARK: (), "KUBE-SERVICES": ("-j OWN",), "OWN": ("a",)},
        jumps=(("OUTPUT", "-j KUBE-SERVICES"),),
    ),
    Ruleset(family="ip", table="mangle", chains={"OWN": ()}),
)  # fmt: skip


def test_a_chain_is_ours_in_its_table_alone() -> None:
    assert MINE.ours("nat", "OWN") and MINE.ours("mangle", "OWN")
    assert not MINE.ours("filter", "OWN") and not MINE.ours("mangle", "KUBE-SERVICES")
    assert not MINE.ours("nat", "KUBE-SEP-X"), "no beginnings of names are ours here"


def test_while_another_mode_is_there_the_chains_of_both_are_its() -> None:
    assert MINE.beside(frozenset((IPVS_MARK,))) == MINE
    rest = MINE.beside(frozenset((IPVS_MARK, IPTABLES_MARK)))
    assert not rest.ours("nat", "KUBE-SERVICES") and rest.ours("nat", "OWN") and rest.ours("nat", IPVS_MARK)


def test_order_counts_where_it_is_not_free() -> None:
    assert MINE.equal(("nat", "FREE"), ["b", "a", "(last)"], ["a", "b", "(last)"])
    assert not MINE.equal(("nat", "FREE"), ["a", "(last)", "b"], ["a", "b", "(last)"])
    assert not MINE.equal(("nat", "OWN"), ["a", "b"], ["b", "a"])


def test_tables_come_in_the_order_of_the_mode() -> None:
    text = repair({}, WANTED, MINE)
    assert text.index("*nat") < text.index("*mangle") and count_tables(text) == 2
    saved = {each.table: {**each.chains, **{chain: (rule,) for chain, rule in each.jumps}} for each in WANTED}
    assert repair(saved, WANTED, MINE) == ""
    assert repair({**saved, "mangle": {}}, WANTED, MINE) == "*mangle\n:OWN - [0:0]\nCOMMIT\n"


def test_what_is_taken_away() -> None:
    saved = {"nat": {"OUTPUT": ["-j KUBE-SERVICES", "-j OTHER"], "OWN": ["a"], "KUBE-SERVICES": ["-j OWN"]}}
    assert removal(saved, MINE).splitlines() == [
        "*nat", ":OWN - [0:0]", ":KUBE-SERVICES - [0:0]", "-D OUTPUT -j KUBE-SERVICES", "-X OWN", "-X KUBE-SERVICES",
        "COMMIT",
    ]  # fmt: skip
    beside = MINE.beside(frozenset((IPTABLES_MARK,)))
    assert removal(saved, beside).splitlines() == [
        "*nat", ":OWN - [0:0]", "-D KUBE-SERVICES -j OWN", "-X OWN", "COMMIT",
    ]  # fmt: skip


def test_our_part_of_a_table() -> None:
    chains = {"OUTPUT": ["-j OTHER", "-m comment -j OWN"], "FREE": ["b", "a", "(last)"], "OTHER": ["x"]}
    part = own_part("ip", "nat", chains, MINE)
    assert part.chains == {"FREE": ("a", "b", "(last)")}
    assert part.jumps == (("OUTPUT", "-m comment -j OWN"),)


def test_words() -> None:
    assert (comment("web"), host("10.0.0.1"), host("fd00::1")) == (
        '-m comment --comment "web"', "10.0.0.1/32", "fd00::1/128",
    )  # fmt: skip
    assert target_of("-s 10.0.0.1/32 -j DROP --x") == "DROP" and target_of("-j OWN") == "OWN"
    assert document([("nat", []), ("filter", ["-A X"])]) == "*filter\n-A X\nCOMMIT\n"
