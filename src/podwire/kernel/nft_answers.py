"""Decodes nftables objects in the kernel's answers: tables, chains, rules, sets and their elements. Pure.

Elements are most of a large table. Elements of one form (key and data of fixed lengths) are read by position, in a
third of the time. Source: ``include/uapi/linux/netfilter/nf_tables.h``.
"""

import struct
from collections.abc import Iterable

from podwire.kernel import uapi
from podwire.kernel.nft_codec import attribute_list, attributes, number, string
from podwire.kernel.nft_delinearize import verdict_of
from podwire.kernel.nft_elements import ELEM_COMMENT, is_tree, records
from podwire.kernel.nft_messages import HOOKS, SET_COMMENT, SET_FLAGS
from podwire.state.nft import Chain, Element, Set
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import types_of_number


def read_table(body: bytes) -> tuple[str, str]:
    """Name and comment of a NEWTABLE answer."""
    attrs = attributes(body)
    return string(attrs.get(uapi.NFTA_TABLE_NAME)), string(records(attrs.get(uapi.NFTA_TABLE_USERDATA)).get(0))


def read_chain(body: bytes, family: str) -> tuple[str, Chain]:
    """Table name and chain (without rules) of a NEWCHAIN answer."""
    attrs = attributes(body)
    comment = string(records(attrs.get(uapi.NFTA_CHAIN_USERDATA)).get(0))
    name = string(attrs.get(uapi.NFTA_CHAIN_NAME))
    if uapi.NFTA_CHAIN_HOOK not in attrs:
        return string(attrs.get(uapi.NFTA_CHAIN_TABLE)), Chain(name=name, comment=comment)
    hook = attributes(attrs[uapi.NFTA_CHAIN_HOOK])
    hooks = {value: word for word, value in HOOKS.get(family, {}).items()}
    priority = struct.unpack("!i", hook[uapi.NFTA_HOOK_PRIORITY])[0]
    return string(attrs.get(uapi.NFTA_CHAIN_TABLE)), Chain(
        name=name,
        type=string(attrs.get(uapi.NFTA_CHAIN_TYPE)),
        hook=hooks.get(number(hook.get(uapi.NFTA_HOOK_HOOKNUM)), "unknown"),
        device=string(hook.get(uapi.NFTA_HOOK_DEV)),
        priority=priority,
        policy="accept" if number(attrs.get(uapi.NFTA_CHAIN_POLICY), 1) else "drop",
        comment=comment,
    )


def read_rule(body: bytes) -> tuple[str, str, int, bytes, str]:
    """Table, chain, handle, expression list and comment of a NEWRULE answer."""
    attrs = attributes(body)
    comment = string(records(attrs.get(uapi.NFTA_RULE_USERDATA)).get(0))
    return (
        string(attrs.get(uapi.NFTA_RULE_TABLE)),
        string(attrs.get(uapi.NFTA_RULE_CHAIN)),
        number(attrs.get(uapi.NFTA_RULE_HANDLE)),
        attrs.get(uapi.NFTA_RULE_EXPRESSIONS, b""),
        comment,
    )


def rule_chain(body: bytes, head: bytes) -> bytes:
    """The encoded name of the chain of a rule, behind ``head``: the attribute with the table."""
    at = len(head)
    return body[at + 4 : at + struct.unpack_from("=H", body, at)[0]]


def read_set(body: bytes) -> tuple[str, Set]:
    """Table name and declaration of a NEWSET answer."""
    attrs = attributes(body)
    bits = number(attrs.get(uapi.NFTA_SET_FLAGS))
    flags = tuple(flag for flag, bit in SET_FLAGS.items() if bits & bit)
    data: tuple[str, ...] = ()
    if bits & uapi.NFT_SET_MAP:
        kind = number(attrs.get(uapi.NFTA_SET_DATA_TYPE))
        data = ("verdict",) if kind == uapi.NFT_DATA_VERDICT else types_of_number(kind) or ("unknown",)
    size = number(attributes(attrs.get(uapi.NFTA_SET_DESC, b"")).get(uapi.NFTA_SET_DESC_SIZE))
    return string(attrs.get(uapi.NFTA_SET_TABLE)), Set(
        name=string(attrs.get(uapi.NFTA_SET_NAME)),
        key=types_of_number(number(attrs.get(uapi.NFTA_SET_KEY_TYPE))) or ("unknown",),
        data=data,
        flags=flags,
        size=size,
        timeout_s=number(attrs.get(uapi.NFTA_SET_TIMEOUT)) // 1000,
        comment=string(records(attrs.get(uapi.NFTA_SET_USERDATA)).get(SET_COMMENT)),
    )


def element_count(body: bytes, declared: Set) -> int | None:
    """The number of elements in a NEWSET answer; None when the kernel does not state it (6.18 does).

    Also None for elements with a timeout: expired elements are counted until the kernel collects them.
    """
    count = attributes(body).get(uapi.NFTA_SET_COUNT)
    return None if count is None or {"timeout", "dynamic"} & set(declared.flags) else number(count)


def read_elements(bodies: Iterable[bytes], declared: Set) -> dict[bytes, Element]:
    """The elements in NEWSETELEM answers."""
    raw = [
        element
        for body in bodies
        for _, element in attribute_list(attributes(body).get(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, b""))
    ]
    if is_tree(declared):
        return _tree_elements([attributes(element) for element in raw])
    verdicts: dict[bytes, Verdict] = {}
    elements: dict[bytes, Element] = {}
    size = declared.key_length
    like = None
    for part in raw:
        if like is not None and like.fits(part):
            elements[part[8 : 8 + size]] = Element(part[like.data :])
            continue
        element = attributes(part)
        read = elements[element[uapi.NFTA_SET_ELEM_KEY][4:][:size]] = _read_element(element, declared, verdicts)
        if (
            like is None
            and read.data
            and not len(read.data) & 3
            and element.keys() == {uapi.NFTA_SET_ELEM_KEY, uapi.NFTA_SET_ELEM_DATA}
        ):
            like = _ElementForm(part, len(read.data))
    return elements


class _ElementForm:
    """The form of an element of key and data; elements of the same form are read in a third of the time."""

    def __init__(self, part: bytes, size: int) -> None:
        self.data = len(part) - size
        self.length = len(part)
        self.head, self.middle = part[:8], part[self.data - 8 : self.data]

    def fits(self, part: bytes) -> bool:
        """Whether only the bytes of key and data differ."""
        return len(part) == self.length and part[:8] == self.head and part[self.data - 8 : self.data] == self.middle


def _read_element(element: dict[int, bytes], declared: Set, verdicts: dict[bytes, Verdict]) -> Element:
    data = element.get(uapi.NFTA_SET_ELEM_DATA)
    verdict = None
    value = b""
    if data is not None and declared.verdicts:
        verdict = verdicts.get(data)
        if verdict is None:
            verdict = verdicts[data] = verdict_of(attributes(data).get(uapi.NFTA_DATA_VERDICT, b""))
    elif data is not None:
        value = attributes(data).get(uapi.NFTA_DATA_VALUE, b"")
    comment = (
        string(records(element[uapi.NFTA_SET_ELEM_USERDATA]).get(ELEM_COMMENT))
        if uapi.NFTA_SET_ELEM_USERDATA in element
        else ""
    )
    end = (
        attributes(element[uapi.NFTA_SET_ELEM_KEY_END]).get(uapi.NFTA_DATA_VALUE, b"")
        if uapi.NFTA_SET_ELEM_KEY_END in element
        else b""
    )
    timeout = number(element.get(uapi.NFTA_SET_ELEM_TIMEOUT)) // 1000
    if timeout == declared.timeout_s:
        timeout = 0
    return Element(value, verdict, end, comment, timeout)


def _tree_elements(raw: list[dict[int, bytes]]) -> dict[bytes, Element]:
    key_of = uapi.NFTA_SET_ELEM_KEY
    value_of = uapi.NFTA_DATA_VALUE
    ended = [bool(number(e.get(uapi.NFTA_SET_ELEM_FLAGS)) & uapi.NFT_SET_ELEM_INTERVAL_END) for e in raw]
    ends = sorted(attributes(e[key_of])[value_of] for e, end in zip(raw, ended, strict=True) if end)
    starts = sorted(
        ((attributes(e[key_of])[value_of], e) for e, end in zip(raw, ended, strict=True) if not end),
        key=lambda pair: pair[0],
    )
    elements: dict[bytes, Element] = {}
    index = 0
    for key, element in starts:
        while index < len(ends) and ends[index] <= key:
            index += 1
        if index < len(ends):
            last = (int.from_bytes(ends[index], "big") - 1).to_bytes(len(key), "big")
        else:
            last = b"\xff" * len(key)
        data = attributes(element.get(uapi.NFTA_SET_ELEM_DATA, b""))
        verdict = verdict_of(data[uapi.NFTA_DATA_VERDICT]) if uapi.NFTA_DATA_VERDICT in data else None
        comment = string(records(element.get(uapi.NFTA_SET_ELEM_USERDATA)).get(ELEM_COMMENT))
        elements[key] = Element(data.get(value_of, b""), verdict, last, comment)
    return elements
