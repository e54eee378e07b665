"""nft's text: the golden table, rules one by one, round trips."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_text import parse_rule, parse_table

GOLDEN = Path(__file__).parents[2] / "golden/nft/everything.nft"

RULES = [
    line.strip()
    for line in GOLDEN.read_text().split("chain rules {", 1)[1].splitlines()
    if line.strip() and set(line.strip()) != {"}"}
]


def test_the_golden_table_is_what_nft_prints() -> None:
    text = GOLDEN.read_text()
    assert str(parse_table(text)) == text.rstrip("\n")


@pytest.mark.parametrize("text", RULES)
def test_a_rule_prints_as_it_reads(text: str) -> None:
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("ip saddr 10.1.2.3/8 accept", "ip saddr 10.0.0.0/8 accept"),
        ("meta mark set 0x4000", "meta mark set 0x00004000"),
        ("ct state related,established accept", "ct state established,related accept"),
        ("tcp dport { 443, 80 } drop", "tcp dport { 80, 443 } drop"),
        ("iifname eth0 accept", 'iifname "eth0" accept'),
        ("limit rate 3/minute burst 5 packets accept", "limit rate 3/minute accept"),
    ],
)
def test_literals_take_the_printed_form(written: str, printed: str) -> None:
    assert str(parse_rule(written)) == printed


@pytest.mark.parametrize("text", ["frobnicate", "ip saddr", "jump", "update @x { }", "ip saddr 10.0.0.999 drop"])
def test_unknown_text_is_an_error(text: str) -> None:
    with pytest.raises((ConfigError, ValueError)):
        parse_rule(text)


ADDRESSES = st.integers(0, 2**32 - 1).map(lambda n: ".".join(str(b) for b in n.to_bytes(4, "big")))
PORTS = st.integers(0, 65535).map(str)
KEYS = st.tuples(ADDRESSES, st.sampled_from(["tcp", "udp", "sctp"]), PORTS).map(" . ".join)


@given(
    st.dictionaries(KEYS, st.sampled_from(["accept", "drop", "goto web"]), max_size=8),
    st.lists(st.sampled_from(RULES)),
)
def test_tables_round_trip(elements: dict[str, str], rules: list[str]) -> None:
    services = Set(name="services", key=("ipv4_addr", "inet_proto", "inet_service"), data=("verdict",))
    table = Table(
        family="ip",
        name="t",
        sets=(services.with_elements(services.element(k, v, comment="a b") for k, v in elements.items()),),
        chains=(Chain(name="c", rules=tuple(parse_rule(rule) for rule in rules)),),
    )
    assert parse_table(str(table)) == table
