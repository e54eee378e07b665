"""Comments of iptables rules of kind ``nft``, moved from the match ``comment`` to the user data of the rule (pure).

``iptables-restore`` writes a comment as an expression ``match`` of 300 bytes, for which the kernel looks up an
extension of xtables: that is a fifth of the time that it needs for a rule of ``KUBE-SERVICES``. iptables also reads the
comment that nft writes, which is the user data of a rule, and prints it as the last match. So a rule whose last match
is its comment has the same text in both forms.

Source: ``nft_rule_to_iptables_command_state`` of iptables 1.8; ``include/libnftnl/udata.h``.
"""

import struct

from podwire.kernel import uapi
from podwire.kernel.nft_codec import attribute, text

_ATTRIBUTE = struct.Struct("=HH")
_SIZE = 256  # XT_MAX_COMMENT_LEN, linux/netfilter/xt_comment.h
_LONGEST = 254
"""The length of a user datum is one byte, and the text ends with a zero."""


def _nest(kind: int, size: int) -> bytes:
    """The head of an attribute that the kernel does not mark as nested."""
    return _ATTRIBUTE.pack(size, kind)


_DETAILS = text(uapi.NFTA_MATCH_NAME, "comment") + attribute(uapi.NFTA_MATCH_REV, bytes(4))
_DATA = _nest(uapi.NFTA_EXPR_DATA, 4 + len(_DETAILS) + 4 + _SIZE) + _DETAILS + _nest(uapi.NFTA_MATCH_INFO, 4 + _SIZE)
_BODY = text(uapi.NFTA_EXPR_NAME, "match") + _DATA
_MATCH = _nest(uapi.NFTA_LIST_ELEM, 4 + len(_BODY) + _SIZE) + _BODY
"""The beginning of the expression; the text of the comment follows."""
_COUNTER = text(uapi.NFTA_EXPR_NAME, "counter")
"""The name of the expression after the last match of a rule of iptables."""


def with_comment_as_userdata(rule: bytes) -> bytes:
    """The attributes of a rule as the kernel encoded them, with the comment as user data.

    The rule is returned as it is if its last match is not a comment, or if it has other attributes than expressions.
    """
    start = rule.find(_MATCH)
    if start < 0:
        return rule
    first, end = start + len(_MATCH), start + len(_MATCH) + _SIZE
    comment = rule[first : rule.find(b"\0", first, end) + 1]
    size, kind = _ATTRIBUTE.unpack_from(rule)
    alone = size == len(rule) and kind & uapi.NLA_TYPE_MASK == uapi.NFTA_RULE_EXPRESSIONS
    if not alone or not 1 < len(comment) <= _LONGEST + 1 or not rule.startswith(_COUNTER, end + _ATTRIBUTE.size):
        return rule
    userdata = attribute(uapi.NFTA_RULE_USERDATA, bytes((0, len(comment))) + comment)  # 0: NFTNL_UDATA_RULE_COMMENT
    return b"".join((_ATTRIBUTE.pack(size - (end - start), kind), rule[4:start], rule[end:], userdata))
