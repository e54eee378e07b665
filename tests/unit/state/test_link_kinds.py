"""Kinds of devices: a kind that a test registers has its words, its value and its device below."""

import pytest

from podwire.state import network
from podwire.state.changes import creation_order, diff
from podwire.state.grammar import Option
from podwire.state.link import Link
from podwire.state.link_kinds import KINDS, Attributes, LinkKind, Vxlan
from podwire.state.network import NetworkState


class Stacked(Attributes, frozen=True):
    """The options of a device that a test made up."""

    layer: int
    under: str = ""


@pytest.fixture(autouse=True)
def stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    row = LinkKind((Option("layer", "layer", "number"), Option("under", "under")), attributes=Stacked, lower="under")
    monkeypatch.setitem(KINDS, "stacked", row)


@pytest.fixture
def top(stacked: None) -> Link:
    """A device of the registered kind."""
    return Link("top", "stacked", attributes=Stacked(2, "bottom"))


def test_a_registered_kind_prints_and_parses_back(top: Link) -> None:
    text = "link top up type stacked layer 2 under bottom"
    assert str(top) == text
    assert network.parse(text).links == (top,)
    with pytest.raises(Exception, match="type stacked needs the word 'layer'"):
        network.parse("link top type stacked under bottom")


def test_the_device_below_is_made_first(top: Link) -> None:
    bottom = Link("bottom", "dummy")
    assert creation_order((top, bottom)) == [bottom, top]
    assert top.lower == "bottom" and top.over("other").attributes == Stacked(2, "other")


def test_other_attributes_are_another_device(top: Link) -> None:
    changed = Link("top", "stacked", attributes=Stacked(3, "bottom"))
    steps = diff(NetworkState(links=(top,)), NetworkState(links=(changed,))).steps
    assert [str(step) for step in steps] == [
        "ip link delete top",
        "ip link add top type stacked layer 3 under bottom\nip link set top up",
    ]


@pytest.mark.parametrize(
    ("kind", "attributes", "problem"),
    [
        ("stacked", Vxlan(1), "has attributes of type Stacked"),
        ("vxlan", None, "has attributes of type Vxlan"),
        ("bridge", Vxlan(1), "has no attributes"),
    ],
)
def test_attributes_of_another_kind_are_refused(kind: str, attributes: Attributes | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Link("x", kind, attributes=attributes)
