"""Ranges of ports, and tables made rule by rule, against sets of single ports."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from podwire.policy.ports import (
    EVERYTHING,
    PROTOCOLS,
    PortTableBuilder,
    Range,
    Ruling,
    Selection,
    merged,
    overlap,
    selection,
    union,
    without,
)

SMALL = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=5)


def ports(ranges: object) -> set[int]:
    return {port for first, last in ranges for port in range(first, last + 1)}  # type: ignore[attr-defined]


@given(SMALL, SMALL)
def test_ranges_are_sets(one: list[Range], other: list[Range]) -> None:
    mine, theirs = merged(one), merged(other)
    assert ports(mine) == ports(one)
    assert ports(overlap(mine, theirs)) == ports(one) & ports(other)
    assert ports(without(mine, theirs)) == ports(one) - ports(other)
    for result in (mine, overlap(mine, theirs), without(mine, theirs)):
        assert merged(result) == result


def test_adjacent_ranges_are_merged() -> None:
    assert merged([(5, 9), (1, 4), (20, 30), (25, 26)]) == ((1, 9), (20, 30))
    assert merged([(3, 2)]) == ()


@given(st.lists(st.tuples(st.sampled_from(PROTOCOLS), SMALL, st.booleans(), st.booleans()), max_size=6))
def test_the_first_rule_that_speaks_of_a_port_decides(rules: list[tuple[str, list[Range], bool, bool]]) -> None:
    maker = PortTableBuilder()
    for place, (protocol, ranges, other, accept) in enumerate(rules):
        maker.decide(selection({protocol: ranges}, other=other), Ruling(accept, "rule", place))
    rest = Ruling(accept=False)
    table = maker.table(rest)
    for protocol in PROTOCOLS:
        for port in (*range(22), 65535):
            decides = (
                Ruling(accept, "rule", place)
                for place, (spoken, ranges, _, accept) in enumerate(rules)
                if spoken == protocol and port in ports(ranges)
            )
            assert table.ruling(protocol, port) == next(decides, rest)
    remaining = (Ruling(accept, "rule", place) for place, (_, _, other, accept) in enumerate(rules) if other)
    assert table.ruling("ICMP", 0) == next(remaining, rest)
    for protocol in PROTOCOLS:
        own = [entry for entry in table.entries if entry.protocol == protocol]
        assert [entry.first for entry in own] == [0, *(entry.last + 1 for entry in own[:-1])]
        assert own[-1].last == 65535
        assert all(item.ruling != other.ruling for item, other in itertools.pairwise(own))


def test_tier_passes_only_to_the_next_tier() -> None:
    maker = PortTableBuilder()
    web, all_tcp = selection({"TCP": [(80, 80)]}), selection({"TCP": [(0, 65535)]}, other=True)
    maker.pass_on(web)
    maker.pass_on(Selection(ports=(), other=True))
    maker.decide(all_tcp, Ruling(accept=False, policy="admin"))
    maker.next_tier()
    maker.decide(all_tcp, Ruling(accept=True, policy="namespace"))
    table = maker.table(Ruling(accept=True))
    assert table.ruling("TCP", 80).policy == "namespace"
    assert table.ruling("TCP", 81).policy == "admin"
    assert table.ruling("ICMP", 0).policy == "namespace"
    assert table.ruling("UDP", 80).policy == ""


def test_a_table_with_one_ruling_is_uniform() -> None:
    allowed = Ruling(accept=True)
    assert PortTableBuilder().table(allowed).uniform == allowed
    maker = PortTableBuilder()
    maker.decide(selection({"UDP": [(53, 53)]}), Ruling(accept=True, policy="dns"))
    assert maker.table(allowed).uniform is None


def test_a_union_has_the_ports_of_all_parts() -> None:
    parts = (selection({"TCP": [(1, 5)]}), selection({"TCP": [(4, 9)], "UDP": [(7, 7)]}, other=True))
    assert union(parts) == Selection(ports=(("TCP", ((1, 9),)), ("UDP", ((7, 7),))), other=True)
    assert union((EVERYTHING, *parts)) == EVERYTHING


@given(SMALL, SMALL)
def test_table_lessens_another_where_it_drops_accepted_ports(one: list[Range], other: list[Range]) -> None:
    tables = []
    for ranges in (one, other):
        maker = PortTableBuilder()
        maker.decide(selection({"UDP": ranges}), Ruling(True, "a/b", 0))
        tables.append(maker.table(Ruling(accept=False)))
    assert tables[0].lessens(tables[1]) == bool(ports(one) - ports(other))
    everything = PortTableBuilder().table(Ruling(accept=True))
    assert everything.lessens(tables[0])
    assert not tables[0].lessens(everything)


def test_many_ranges_are_walked_through_once() -> None:
    """Every other port, thrice: with a walk for each range this takes minutes."""
    maker = PortTableBuilder()
    for start in (1, 2, 1):
        maker.decide(selection({"UDP": [(port, port) for port in range(start, 65535, 2)]}), Ruling(True, "a/b", start))
    assert len(maker.table(Ruling(accept=False)).entries) == 2 + 65536
