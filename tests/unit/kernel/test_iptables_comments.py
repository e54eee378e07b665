"""The comment of a rule of iptables moves to its user data only where the text of the rule stays the same."""

import pytest

from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.iptables_comments import with_comment_as_userdata


def element(name: str, *data: bytes) -> bytes:
    """An expression as the kernel encodes it, without the mark of nested attributes."""
    body = nl.text(uapi.NFTA_EXPR_NAME, name) + nl.attribute(uapi.NFTA_EXPR_DATA, b"".join(data))
    return nl.attribute(uapi.NFTA_LIST_ELEM, body)


def match(name: str, info: bytes) -> bytes:
    """A match of iptables."""
    revision = nl.u32(uapi.NFTA_MATCH_REV, 0)
    return element("match", nl.text(uapi.NFTA_MATCH_NAME, name), revision, nl.attribute(uapi.NFTA_MATCH_INFO, info))


def rule(*expressions: bytes) -> bytes:
    return nl.attribute(uapi.NFTA_RULE_EXPRESSIONS, b"".join(expressions))


PORT, COUNTER, JUMP = element("cmp", b"port"), element("counter", b"zero"), element("immediate", b"jump")
COMMENT = match("comment", b"default/web:http cluster IP".ljust(256, b"\0"))


def test_a_comment_as_last_match_becomes_user_data() -> None:
    moved = with_comment_as_userdata(rule(PORT, COMMENT, COUNTER, JUMP))
    expressions, userdata = nl.attribute_list(moved)
    assert expressions == (uapi.NFTA_RULE_EXPRESSIONS, PORT + COUNTER + JUMP)
    assert userdata == (uapi.NFTA_RULE_USERDATA, b"\0\x1cdefault/web:http cluster IP\0")
    assert with_comment_as_userdata(moved) == moved


@pytest.mark.parametrize(
    "unchanged",
    [
        rule(PORT, COUNTER, JUMP),
        rule(COMMENT, PORT, COUNTER, JUMP),
        rule(COMMENT, match("statistic", bytes(24)), COUNTER, JUMP),
        rule(PORT, match("comment", b"x" * 255 + b"\0"), COUNTER, JUMP),
        rule(PORT, match("comment", bytes(256)), COUNTER, JUMP),
        rule(PORT, COMMENT, COUNTER, JUMP) + nl.attribute(uapi.NFTA_RULE_USERDATA, b"\0\3xy\0"),
    ],
    ids=["no comment", "a comment before others", "before a match", "too long", "empty", "user data already"],
)
def test_other_rules_are_left_as_they_are(unchanged: bytes) -> None:
    assert with_comment_as_userdata(unchanged) == unchanged
