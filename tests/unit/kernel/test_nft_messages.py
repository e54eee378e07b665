"""nftables messages without a kernel: rules to expressions and back, elements, framing, damaged input."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.nft_answers import element_count, read_elements, read_set
from podwire.kernel.nft_delinearize import delinearize
from podwire.kernel.nft_elements import comment_data, element_lists, records
from podwire.kernel.nft_linearize import linearize
from podwire.kernel.nft_messages import Batch, compatibility, set_body
from podwire.state.nft import Element, Set
from podwire.state.nft_diff import RestoreRules, Transaction, diff
from podwire.state.nft_rules import Opaque, Rule
from podwire.state.nft_text import parse_rule, parse_table

EVERYTHING = parse_table((Path(__file__).parents[2] / "golden/nft/everything.nft").read_text())
RULES = [rule for chain in EVERYTHING.chains for rule in chain.rules]
SETS = {declared.name: declared for declared in EVERYTHING.sets}


def back_and_forth(rule: Rule, family: str = "ip") -> Rule:
    written = linearize(rule, family)
    carried = {declared.set.name: declared.set for declared in written.sets}
    return delinearize(written.expressions, family, SETS | carried, rule.comment)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_come_back(rule: Rule) -> None:
    assert back_and_forth(rule) == rule


@pytest.mark.parametrize(
    "text",
    [
        "ip saddr 10.0.0.0/8 drop",
        "ip6 saddr fd00::/8 accept",
        "tcp dport 80 ip daddr 10.0.0.1 accept",
        "reject",
        "udp dport 4789 notrack",
        "udp dport 53 socket transparent 1 notrack",
        "udp dport 6082 ip saddr 10.0.0.0/8 notrack ip daddr set 169.254.82.3",
        "ip6 saddr set fd00::3 ip6 daddr set fd00::4",
        "reject with icmpx admin-prohibited",
    ],
)
def test_inet_tables_imply_the_family(text: str) -> None:
    assert str(back_and_forth(parse_rule(text), "inet")) == text


def test_an_unknown_expression_is_opaque() -> None:
    expression = nl.nested(1, nl.text(1, "osf") + nl.nested(2, nl.u32(1, 1)))
    assert delinearize(expression, "ip", {}).statements == (Opaque("osf"),)


def test_an_unknown_statement_is_an_error() -> None:
    with pytest.raises(ConfigError):
        linearize(Rule((Opaque("osf"),)), "ip")
    with pytest.raises(ConfigError, match="cannot set tcp dport: expected an address of the network header"):
        linearize(parse_rule("tcp dport set 80"), "ip")


@given(st.binary(max_size=200))
def test_damaged_expressions_do_no_harm(data: bytes) -> None:
    with contextlib.suppress(ConfigError, ValueError, KeyError, IndexError):
        delinearize(data, "ip", SETS)
    assert len(list(nl.messages(data))) <= len(data)
    assert len(nl.attributes(data)) <= len(data)
    assert len(records(data)) <= len(data)


def test_attributes_are_padded() -> None:
    assert nl.text(1, "abc") == b"\x08\x00\x01\x00abc\x00"
    assert nl.text(1, "abcd") == b"\x09\x00\x01\x00abcd\x00\x00\x00\x00"
    assert dict(nl.attribute_list(nl.u32(1, 7) + nl.nested(2, nl.u64(3, 9)))) == {1: b"\0\0\0\x07", 2: nl.u64(3, 9)}


@pytest.mark.parametrize("declared", EVERYTHING.sets, ids=lambda item: item.name)
def test_sets_and_elements_come_back(declared: Set) -> None:
    table, read = read_set(set_body("t", declared, 1, declared.size))
    assert (table, read) == ("t", declared.without_elements())
    bodies = [nl.nested(3, chunk) for chunk in element_lists(declared, declared.elements)]
    assert read_elements(bodies, declared) == declared.elements


def test_the_count_is_believed_where_elements_stay() -> None:
    declared = Set(name="s", key=("ipv4_addr",))
    assert element_count(nl.u32(20, 7), declared) == 7
    assert element_count(nl.text(2, "s"), declared) is None
    assert element_count(nl.u32(20, 7), Set(name="s", key=("ipv4_addr",), flags=("timeout",))) is None


def test_long_lists_are_cut() -> None:
    declared = Set(name="s", key=("ipv4_addr",))
    elements = {number.to_bytes(4, "big"): Element() for number in range(10_000)}
    chunks = list(element_lists(declared, elements))
    assert len(chunks) > 1
    assert max(map(len, chunks)) <= 65_535
    assert read_elements([nl.nested(3, chunk) for chunk in chunks], declared) == elements


def test_a_batch_is_framed_and_asks_once() -> None:
    batch = Batch(diff(None, EVERYTHING), 100)
    result = list(nl.messages(batch.encode()))
    assert result[0][0] == uapi.NFNL_MSG_BATCH_BEGIN
    assert result[-1][0] == uapi.NFNL_MSG_BATCH_END
    assert [sequence for _, _, sequence, _ in result] == list(range(100, 100 + len(result)))
    assert [index for index, (_, flags, _, _) in enumerate(result) if flags & uapi.NLM_F_ACK] == [len(result) - 2]
    operation, message = batch.subject(101)
    assert str(operation) == "add table"
    assert message


def test_comments_are_cut_at_what_the_kernel_takes() -> None:
    assert len(comment_data("x" * 300)) <= 130
    assert comment_data("") == b""


def test_restored_rules_keep_their_bytes_and_order() -> None:
    for first, order in ((False, [b"one!", b"two!"]), (True, [b"two!", b"one!"])):
        operation = RestoreRules("KUBE-SERVICES", (b"one!", b"two!"), first=first)
        assert str(operation) == "restore 2 rules of chain KUBE-SERVICES"
        begin, *messages, _ = nl.messages(Batch(Transaction("ip", "nat", (operation,)), generation=7).encode())
        assert nl.attributes(begin[3][4:]) == {uapi.NFNL_BATCH_GENID: b"\0\0\0\7"}
        assert [body[-4:] for _, _, _, body in messages] == order
        assert {kind & 0xFF for kind, _, _, _ in messages} == {uapi.NFT_MSG_NEWRULE}
        assert {bool(flags & uapi.NLM_F_APPEND) for _, flags, _, _ in messages} == {not first}


@pytest.mark.parametrize(
    ("text", "protocol", "flags"),
    [
        ("meta l4proto tcp accept", 6, 0),
        ("ip daddr 10.0.0.1 meta l4proto udp drop", 17, 0),
        ("meta l4proto != tcp accept", 6, uapi.NFT_RULE_COMPAT_F_INV),
        ("ip daddr 10.0.0.1 accept", None, 0),
        ("meta l4proto { tcp, udp } accept", None, 0),
    ],
)
def test_the_protocol_of_a_rule_is_found_for_iptables(text: str, protocol: int | None, flags: int) -> None:
    expressions = linearize(parse_rule(text), "ip").expressions
    rule = nl.attribute(uapi.NFTA_RULE_EXPRESSIONS, as_the_kernel(expressions))
    attributes = nl.attributes(nl.attributes(compatibility(rule)).get(uapi.NFTA_RULE_COMPAT, b""))
    found = attributes.get(uapi.NFTA_RULE_COMPAT_PROTO)
    assert (nl.number(found) if found is not None else None) == protocol
    assert nl.number(attributes.get(uapi.NFTA_RULE_COMPAT_FLAGS)) == flags


def as_the_kernel(expressions: bytes) -> bytes:
    """Expressions as the kernel encodes them: without the mark of nested attributes, the key of ``meta`` first."""
    encoded = b""
    for kind, element in nl.attribute_list(expressions):
        fields = nl.attributes(element)
        name, data = fields[uapi.NFTA_EXPR_NAME], list(nl.attribute_list(fields[uapi.NFTA_EXPR_DATA]))
        data.sort(reverse=nl.string(name) == "meta")
        inner = b"".join(nl.attribute(number, payload) for number, payload in data)
        encoded += nl.attribute(
            kind, nl.attribute(uapi.NFTA_EXPR_NAME, name) + nl.attribute(uapi.NFTA_EXPR_DATA, inner)
        )
    return encoded
