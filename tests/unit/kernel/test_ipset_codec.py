"""Messages of ipset: what is sent, as bytes, and what the kernel answers."""

from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ProtocolError, Unsupported
from podwire.kernel import ipset_codec as codec
from podwire.kernel.attributes import attribute, nested, parse, text, u8
from podwire.state.ipset import KINDS, IpSet, IpSetElement, element_text, plain

HEAD = bytes(4) + u8(1, 6)


def test_a_set_as_bytes() -> None:
    want = IpSet(name="some", kind="hash:ip,port", maxelem=9, timeout_s=600, comment=True)
    data = (
        (0x4012, bytes((0, 0, 4, 0))),
        (0x4013, bytes((0, 0, 0, 9))),
        (0x4006, bytes((0, 0, 2, 88))),
        (0x4008, bytes((0, 0, 0, 16))),
    )
    assert codec.create(want, 7) == HEAD + text(2, "some") + text(3, "hash:ip,port") + u8(4, 7) + u8(5, 2) + nested(
        7, *(attribute(kind, value) for kind, value in data)
    )


def test_a_set_of_ports_as_bytes() -> None:
    want = IpSet(name="p", kind="bitmap:port", ports=(1, 256))
    result = parse(codec.create(want, 3), 4)
    assert (result[5], parse(result[7])) == (b"\0", {4: b"\0\x01", 5: b"\x01\0"})


def test_an_element_as_bytes() -> None:
    want = IpSet(name="some", kind="hash:ip,port,net", timeout_s=0)
    address = nested(1, attribute(0x4001, bytes((10, 96, 0, 10))))
    port = attribute(0x4004, b"\0\x50") + u8(7, 6)
    network = nested(20, attribute(0x4001, bytes((10, 0, 0, 0)))) + u8(21, 8)
    key = "10.96.0.10,tcp:80,10.0.0.0/8"
    assert codec.change(want, key, None) == HEAD + text(2, "some") + nested(7, address, port, network)
    options = attribute(0x4006, bytes((0, 0, 0, 5))) + attribute(0x4008, bytes((0, 0, 0, 4))) + text(26, "why")
    sent = codec.change(want, key, IpSetElement(5, "why", True))
    assert sent == HEAD + text(2, "some") + nested(7, address, port, network, options)


def test_a_mark_as_bytes() -> None:
    want = IpSet(name="some", kind="hash:net,iface", marks=True)
    assert parse(parse(codec.create(want, 7), 4)[7])[8] == bytes((0, 0, 0, 64))
    address = nested(1, attribute(0x4001, bytes((10, 0, 0, 1)))) + u8(3, 32)
    mark = attribute(0x401B, bytes((0, 16, 0, 0, 255, 240, 0, 0)))
    sent = codec.change(want, "10.0.0.1,web", IpSetElement(mark=(0x100000, 0xFFF00000)))
    assert sent == HEAD + text(2, "some") + nested(7, address, text(23, "web"), mark)


def answers(want: IpSet, room: int = 3) -> list[bytes]:
    """A dump of a set, as the kernel tells it: what is sent to make it, cut into messages."""
    head = codec.create(want, 1)
    keys = list(want.elements)
    reported = [
        codec.set_name(want.name)
        + nested(
            8, *(nested(7, parse(codec.change(want, key, want.elements[key]), 4)[7]) for key in keys[at : at + room])
        )
        for at in range(0, len(keys), room)
    ]
    return [head + reported[0][len(codec.set_name(want.name)) :], *reported[1:]] if reported else [head]


ADDRESSES = st.ip_addresses().map(str)
PARTS = {
    "ip": ADDRESSES,
    "net": ADDRESSES | st.sampled_from(["10.0.0.0/8", "fd00::/64", "128.0.0.0/1"]),
    "port": st.sampled_from(["tcp:80", "udp:65535", "sctp:0", "udplite:1", "icmp:8/0", "icmpv6:128/3", "47:0"]),
    "number": st.integers(0, 65535).map(str),
    "within": st.ip_addresses(network="10.0.0.0/8").map(lambda address: f"{address}/32") | st.just("0.0.0.0/0"),
    "device": st.from_regex(r"[a-z]{1,8}[0-9]{0,3}", fullmatch=True),
}


@given(st.data())
def test_a_set_is_read_as_it_was_written(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    options = st.builds(
        IpSetElement,
        timeout_s=st.none() | st.integers(0, 2**32 - 1),
        comment=st.text(st.characters(exclude_characters='"\n\0', exclude_categories=["Cs"]), max_size=9),
        nomatch=st.booleans(),
        mark=st.none() | st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    )
    key = st.tuples(*(PARTS[part] for part in KINDS[kind])).map(lambda parts: element_text(kind, ",".join(parts)))
    family: Literal["inet", "inet6"] = (
        "inet" if kind == "bitmap:port" else data.draw(st.sampled_from(["inet", "inet6"]))
    )
    want = IpSet(
        name="some",
        kind=kind,
        family=family,
        timeout_s=data.draw(st.none() | st.integers(0, 99)),
        comment=data.draw(st.booleans()),
        elements=data.draw(st.dictionaries(key, options, max_size=8)),
    )
    assert codec.read_set(answers(want)) == want


def test_requests_have_the_expected_bytes() -> None:
    assert parse(codec.names_only(), 4) == {1: b"\x06", 6: bytes((0, 0, 0, 2))}
    assert parse(codec.type_request(IpSet(name="a", kind="hash:ip", family="inet6")), 4) == {
        1: b"\x06", 3: b"hash:ip\0", 5: b"\x0a",
    }  # fmt: skip
    assert codec.read_revision(HEAD + u8(4, 6) + u8(10, 0)) == 6
    assert parse(codec.set_names("a", "b"), 4) == {1: b"\x06", 2: b"a\0", 3: b"b\0"}
    assert codec.read_name(codec.set_name("a")) == "a"


def test_an_unknown_type_is_an_error() -> None:
    other = msgspec.structs.replace(IpSet(name="a", kind="hash:ip"), kind="list:set")
    with pytest.raises(Unsupported, match="set a of type list:set"):
        codec.read_set([codec.create(other, 1)])


def test_a_dump_without_a_head_is_refused() -> None:
    want = IpSet(name="a", kind="hash:ip", elements=plain(["10.0.0.1"]))
    with pytest.raises(ProtocolError):
        codec.read_set([])
    with pytest.raises(ProtocolError):
        codec.read_set([codec.change(want, "10.0.0.1", None)])
    with pytest.raises(ProtocolError):
        codec.read_set([codec.create(want, 1) + nested(8, b"\x02\0\0\0")])
    for address in (b"", nested(1), nested(1, attribute(0x4001, b"\x0a"))):
        with pytest.raises(ProtocolError, match="an address of"):
            codec.read_set([codec.create(want, 1) + nested(8, nested(7, address))])


@given(st.binary(max_size=200))
def test_no_answer_breaks_the_reader(data: bytes) -> None:
    want = IpSet(name="a", kind="hash:ip,port,net")
    try:
        codec.read_set([codec.create(want, 1) + nested(8, data)])
    except ProtocolError as failure:
        assert failure.side == "remote"
