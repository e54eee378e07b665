"""Kinds of state: a kind that a test registers prints, parses and is compared without a line of code elsewhere."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from podwire.errors import ConfigError
from podwire.state.drift import Difference, render
from podwire.state.kinds import KINDS, Kind, Values
from podwire.state.network import OwnerMark, parse
from podwire.state.nft import AbsentTable
from podwire.state.nft_text import parse_table
from podwire.state.share import Share
from podwire.state.share import parse as parse_shares
from podwire.state.share import render as render_shares


class Lamp(msgspec.Struct, frozen=True):
    """A lamp that is on or off."""

    name: str
    on: bool

    def lines(self) -> Iterator[str]:
        yield f"lamp {self.name} {'on' if self.on else 'off'}"


def _parse(lines: Sequence[str], _where: str) -> Values:
    arguments = [line.split() for line in lines]
    if any(len(word) != 3 or word[2] not in ("on", "off") for word in arguments):
        raise ValueError("expected: lamp NAME on|off")
    return tuple(Lamp(name, state == "on") for _, name, state in arguments)


def _compare(title: str, have: Values, expected: Values, _mark: object) -> Iterator[Difference]:
    for lamp in expected:
        if lamp not in have:
            yield from (Difference(f"{title}: lamps", "+", line) for line in lamp.lines())


def _mark(owner: OwnerMark | None, expected: Values) -> str | None:
    return f"{owner.alias_prefix if owner else 'all'} lamps" if expected else None


@pytest.fixture(autouse=True)
def lamps(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Kind(Lamp, _parse, _mark, _compare, lambda lamp: (("lamps", line) for line in lamp.lines()), ("lamp ",))
    monkeypatch.setitem(KINDS, "lamp", row)


TEXT = """\
part house protocol 9 alias mine
route 10.0.0.0/8 dev eth0 proto 9
no table ip old
lamp hall on
lamp roof off

end
"""


def share() -> Share:
    """A share with values of three kinds, in another order than that of the kinds."""
    route = parse("route 10.0.0.0/8 dev eth0 proto 9\n")
    values = (Lamp("hall", True), AbsentTable("ip", "old"), Lamp("roof", False), route)
    return Share(part="house", protocol=9, alias="mine", desired=values)


def test_a_share_with_a_registered_kind_reads_back() -> None:
    assert "".join(f"{line}\n" for line in render_shares([share()])) == TEXT
    assert parse_shares(TEXT.splitlines()) == [share()]
    assert ("house: lamps", "lamp roof off") in share().located()


def test_a_wrong_line_names_the_part() -> None:
    with pytest.raises(ConfigError, match=r"part house.*expected: lamp NAME on\|off"):
        parse_shares(TEXT.replace("roof off", "roof dim").splitlines())


def test_the_mark_and_the_comparison_are_the_kinds() -> None:
    assert share().mark(KINDS["lamp"]) == "mine lamps"
    assert Share(part="house").mark(KINDS["lamp"]) is None
    result = share().compare(KINDS["lamp"], [Lamp("hall", False), Lamp("roof", False)])
    assert list(render(result)) == ["@@ house: lamps @@", "+lamp hall on"]


def test_a_namespace_that_is_gone_lacks_values_of_every_kind() -> None:
    assert [result.text for result in share().missing()] == TEXT.splitlines()[1:-2]


def test_a_value_of_no_kind_is_refused() -> None:
    chain = parse_table("table ip x {\n\tchain c {\n\t\tdrop\n\t}\n}").chains[0]
    with pytest.raises(ValueError, match="no kind of state has values of type Chain"):
        Share(part="house", desired=(chain,))
