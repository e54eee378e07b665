"""Kinds of devices in rtnetlink: a kind that a test registers is encoded and decoded by its row."""

from collections.abc import Mapping

import pytest

from podwire.kernel import link_codec
from podwire.kernel.attributes import number, u32
from podwire.kernel.link_kinds import CODECS, LinkCodec
from podwire.state.grammar import Option
from podwire.state.link import Link
from podwire.state.link_kinds import KINDS, Attributes, LinkKind

LAYER, UNDER = 1, 2


class Stacked(Attributes, frozen=True):
    """The options of a device that a test made up."""

    layer: int
    under: str = ""


def test_a_registered_kind_is_encoded_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(link: Link, indexes: Mapping[str, int]) -> bytes:
        assert isinstance(link.attributes, Stacked)
        return u32(LAYER, link.attributes.layer) + u32(UNDER, indexes[link.attributes.under])

    row = LinkKind((Option("layer", "layer", "number"), Option("under", "under")), Stacked, lower="under")
    monkeypatch.setitem(KINDS, "stacked", row)
    codec = LinkCodec(encode, lambda data: {"attributes": Stacked(number(data, LAYER))}, lower=UNDER)
    monkeypatch.setitem(CODECS, "stacked", codec)
    read = link_codec.decode(link_codec.encode_add(Link("top", "stacked", attributes=Stacked(7, "eth0")), {"eth0": 4}))
    assert read.link == Link("top", "stacked", attributes=Stacked(7))
    assert read.lower == 4


def test_every_codec_has_a_kind() -> None:
    assert CODECS.keys() <= KINDS.keys()
