"""Whose chains are whose, and what follows of it for texts."""

from podwire.proxy.dataplanes.iptables.layout import SHARED
from podwire.state.chain_marks import (
    IPTABLES_MARK,
    IPVS_MARK,
    POLICY,
    PROXY_IPTABLES,
    PROXY_IPVS,
    ChainMark,
    chain_mark,
)
from podwire.state.iptables import Ruleset
from podwire.state.iptables_diff import count_tables, document, own_part, removal, repair, target_of

MINE = ChainMark(
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
    assert MINE.owns("nat", "OWN") and MINE.owns("mangle", "OWN")
    assert not MINE.owns("filter", "OWN") and not MINE.owns("mangle", "KUBE-SERVICES")
    assert not MINE.owns("nat", "KUBE-SEP-X"), "no beginnings of names are ours here"


def test_shared_chains_belong_to_the_other_mode_while_present() -> None:
    assert MINE.beside(frozenset((IPVS_MARK,))) == MINE
    rest = MINE.beside(frozenset((IPVS_MARK, IPTABLES_MARK)))
    assert not rest.owns("nat", "KUBE-SERVICES") and rest.owns("nat", "OWN") and rest.owns("nat", IPVS_MARK)


def test_order_counts_where_it_is_not_free() -> None:
    assert MINE.equal(("nat", "FREE"), ["b", "a", "(last)"], ["a", "b", "(last)"])
    assert not MINE.equal(("nat", "FREE"), ["a", "(last)", "b"], ["a", "b", "(last)"])
    assert not MINE.equal(("nat", "OWN"), ["a", "b"], ["b", "a"])


def test_tables_come_in_the_order_of_the_mode() -> None:
    text = repair({}, WANTED, MINE)
    assert text.index("*nat") < text.index("*mangle") and count_tables(text) == 2
    saved = {item.table: {**item.chains, **{chain: (rule,) for chain, rule in item.jumps}} for item in WANTED}
    assert repair(saved, WANTED, MINE) == ""
    assert repair({**saved, "mangle": {}}, WANTED, MINE) == "*mangle\n:OWN - [0:0]\nCOMMIT\n"


def test_removal_deletes_only_chains_of_the_owner() -> None:
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
    assert target_of("-s 10.0.0.1/32 -j DROP --x") == "DROP" and target_of("-j OWN") == "OWN"
    assert document([("nat", []), ("filter", ["-A X"])]) == "*filter\n-A X\nCOMMIT\n"


def test_a_share_is_known_by_the_mark_in_its_chains() -> None:
    def nat(*chains: str, table: str = "nat") -> Ruleset:
        return Ruleset(family="ip", table=table, chains=dict.fromkeys(chains, ()))

    assert chain_mark([nat("KUBE-SERVICES", IPTABLES_MARK)]) is PROXY_IPTABLES
    assert chain_mark([nat("X", table="mangle"), nat("KUBE-SERVICES", IPVS_MARK)]) is PROXY_IPVS
    assert chain_mark([nat("PODWIRE-FORWARD", table="mangle")]) is POLICY
    unmarked = chain_mark([nat("KUBE-SERVICES")])
    assert unmarked.owns("nat", "KUBE-SERVICES") and not unmarked.owns("nat", "KUBE-NODEPORTS")


def test_shared_chains_of_services_are_free_of_order() -> None:
    assert PROXY_IPTABLES.free == frozenset(SHARED)
