"""Programs of the classic packet filter that compare addresses."""

import pytest

from podwire.errors import ProtocolError
from podwire.trace.bytecode import run, same_ends

FOUR, SIX = ("10.180.0.1", "10.180.0.2"), ("fd18::1:0:0:1", "fd18::2:0:0:1")


@pytest.mark.parametrize(("family", "pair"), [("ip", FOUR), ("ip6", SIX), ("ip6", ("fd18::1", "fd18::2"))])
def test_the_source_is_the_destination(family: str, pair: tuple[str, str]) -> None:
    program = same_ends(family)
    for source in pair:
        for destination in pair:
            assert run(program, source, destination) is (source == destination)


def test_a_program_is_written_as_iptables_saves_it() -> None:
    assert same_ends("ip") == "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 1,6 0 0 0"
    assert len(same_ends("ip6").split(",")) == 19


@pytest.mark.parametrize("text", ["1,48 0 0 9", "1,32 0 0 0", "1,32 0 0 17", "1,7 0 0 0"])
def test_an_unknown_instruction_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="is not known"):
        run(text, *FOUR)
