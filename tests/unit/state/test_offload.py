"""Checksum offload of devices and its text."""

import pytest

from podwire.state.drift import render
from podwire.state.kinds import KINDS
from podwire.state.offload import Offload, parse
from podwire.state.share import Share
from podwire.state.share import parse as parse_shares
from podwire.state.share import render as render_shares

OFF, ON = Offload("podwire-vxlan", "off"), Offload("podwire-geneve", "on")


def test_the_text_is_read_and_printed() -> None:
    lines = [str(OFF), str(ON)]
    assert lines == ["offload podwire-vxlan tx off", "offload podwire-geneve tx on"]
    assert parse(lines) == (OFF, ON)
    share = Share(part="routing", protocol=113, alias="podwire/routing", desired=(OFF, ON))
    assert [*parse_shares(render_shares([share]))] == [share]


@pytest.mark.parametrize("line", ["offload eth0", "offload eth0 tx maybe", "offload eth0 rx on", "checksum eth0 tx on"])
def test_a_wrong_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"tx|rx"):
        parse([line])


def test_a_difference_has_both_forms() -> None:
    kind = KINDS["offload"]
    present = (Offload("podwire-vxlan", "on"),)
    assert list(render(kind.compare("routing", present, (OFF,), kind.mark(None, (OFF,))))) == [
        "@@ routing @@",
        "-offload podwire-vxlan tx on",
        "+offload podwire-vxlan tx off",
    ]
    assert list(kind.compare("routing", (OFF,), (OFF,), ())) == []
