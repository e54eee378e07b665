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


_USERDATA = tuple(_ATTRIBUTE.pack(6 + size, uapi.NFTA_RULE_USERDATA) + bytes((0, size)) for size in range(256))
"""The heads of the user data and of the comment in it (0: NFTNL_UDATA_RULE_COMMENT), by the size of the comment."""


def with_comment_as_userdata(rule: bytes) -> bytes:
    """The attributes of a rule as the kernel encoded them, with the comment as user data.

    The rule is returned as it is if its last match is not a comment, or if it has other attributes than expressions.
    """
    before, match, after = rule.partition(_MATCH)
    if not match or not after.startswith(_COUNTER, _SIZE + _ATTRIBUTE.size):
        return rule
    size, kind = _ATTRIBUTE.unpack_from(rule)
    length = after.find(b"\0") + 1
    if size != len(rule) or kind & uapi.NLA_TYPE_MASK != uapi.NFTA_RULE_EXPRESSIONS or not 1 < length <= _LONGEST + 1:
        return rule
    padded = after[: length + -(2 + length) % 4]
    head = _ATTRIBUTE.pack(size - len(_MATCH) - _SIZE, kind)
    return b"".join((head, before[4:], after[_SIZE:], _USERDATA[length], padded))
