"""Types, fields, statements and sets of nftables: text to bytes and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.state.nft import Element, Set, interval_bounds, interval_text, priority_text
from podwire.state.nft_fields import FIELDS, field_type, loaded_field, payload_field
from podwire.state.nft_rules import (
    Concat,
    Counter,
    Field,
    LiteralValue,
    Masked,
    Match,
    Numgen,
    Rule,
    Verdict,
    duration,
    operand_types,
)
from podwire.state.nft_types import TYPES, data_type, length, pack, type_number, types_of_number, unpack

CASES = [
    ("ipv4_addr", "10.0.0.1", b"\x0a\0\0\x01"),
    ("ipv6_addr", "fd00::1", b"\xfd\0" + bytes(13) + b"\x01"),
    ("inet_proto", "tcp", b"\x06"),
    ("inet_proto", "200", b"\xc8"),
    ("inet_service", "8080", b"\x1f\x90"),
    ("ifname", '"eth0"', b"eth0" + bytes(12)),
    ("ether_addr", "02:00:00:00:00:01", b"\x02\0\0\0\0\x01"),
    ("ct_dir", "reply", b"\x01"),
]


@pytest.mark.parametrize(("kind", "text", "data"), CASES)
def test_values(kind: str, text: str, data: bytes) -> None:
    assert pack((kind,), (text,)) == data
    assert unpack((kind,), data) == (text,)


@pytest.mark.parametrize(
    ("kind", "text"), [("mark", "0x00004000"), ("slot", "65536"), ("ct_state", "established,related")]
)
def test_values_in_host_order(kind: str, text: str) -> None:
    assert unpack((kind,), pack((kind,), (text,))) == (text,)


def test_a_concatenation_is_padded() -> None:
    types = ("ipv4_addr", "inet_proto", "inet_service")
    assert pack(types, ("10.96.0.1", "tcp", "80")) == b"\x0a\x60\0\x01\x06\0\0\0\0\x50\0\0"
    assert length(types) == 12


@pytest.mark.parametrize("text", ["10.0.0", "10.0.0.256", "a.b.c.d", ""])
def test_a_wrong_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        pack(("ipv4_addr",), (text,))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError):
        data_type("nonsense")
    with pytest.raises(ConfigError):
        field_type("ip nonsense")


@given(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=5))
def test_type_numbers(names: list[str]) -> None:
    assert types_of_number(type_number(tuple(names))) == tuple(names)


def test_every_field_is_found_by_how_it_is_loaded() -> None:
    for field in FIELDS.values():
        if field.source == "payload":
            result = payload_field(field.a, field.b, field.type.size, field.family, field.protocol)
        else:
            result = loaded_field(field.source, field.a, field.b)
        assert result is not None
        assert (result.a, result.b, result.type.size) == (field.a, field.b, field.type.size)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.0.0.0-10.0.0.255", "10.0.0.0/24"),
        ("10.0.0.1-10.0.0.2", "10.0.0.1-10.0.0.2"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_intervals(text: str, shown: str) -> None:
    assert interval_text("ipv4_addr", *interval_bounds("ipv4_addr", text)) == shown


def test_elements() -> None:
    declared = Set(name="guarded", key=("ipv4_addr", "inet_service", "ipv4_addr"), flags=("interval",))
    key, element = declared.element("10.0.0.1 . 80 . 192.0.2.0/24", comment="web")
    assert declared.element_text(key, element) == '10.0.0.1 . 80 . 192.0.2.0/24 comment "web"'
    verdicts = Set(name="services", key=("inet_service",), data=("verdict",))
    assert verdicts.element("80", "goto web") == (b"\0\x50", Element(verdict=Verdict("goto", "web")))


@pytest.mark.parametrize(
    ("priority", "hook", "text"),
    [
        (-100, "prerouting", "dstnat"),
        (-110, "prerouting", "dstnat - 10"),
        (-100, "output", "-100"),
        (100, "postrouting", "srcnat"),
        (0, "input", "filter"),
        (-300, "prerouting", "raw"),
        (77, "input", "77"),
    ],
)
def test_priorities(priority: int, hook: str, text: str) -> None:
    assert priority_text(priority, hook) == text


@pytest.mark.parametrize(("seconds", "text"), [(10800, "3h"), (90, "1m30s"), (0, "0s"), (86401, "1d1s")])
def test_durations(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_counted_packets_are_no_difference() -> None:
    match = Match(Field("ip saddr"), LiteralValue("10.0.0.1"))
    assert Rule((match, Counter(5, 300))).without_counts == Rule((match, Counter())).without_counts


def test_types_of_operands() -> None:
    key = Concat((Field("ip daddr"), Numgen(3)))
    assert [kind.name for kind in operand_types(key)] == ["ipv4_addr", "slot"]
    assert operand_types(Masked(Field("meta mark"), "&", LiteralValue("0x1")))[0].name == "mark"
