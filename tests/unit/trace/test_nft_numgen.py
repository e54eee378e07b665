"""Numbers that chance chooses."""

import pytest

from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_text import parse_rule
from podwire.trace.nft import Tracer
from podwire.trace.nft_numgen import Draw, alike
from podwire.trace.packet import LocalAddresses, Packet


def options(draw: Draw) -> dict[int, float]:
    result: dict[int, float] = {}
    number: int | None = draw.options[0]
    while number is not None:
        result[number] = draw.probability(number)
        number = draw.after(number)
    return result


def test_every_number_counts_where_all_lead_somewhere() -> None:
    assert options(Draw(4)) == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}
    assert options(Draw(2, [0, 1])) == {0: 0.5, 1: 0.5}


def test_one_number_stands_for_all_that_lead_nowhere() -> None:
    assert options(Draw(8, [0, 2, 4])) == {0: 1 / 8, 1: 5 / 8, 2: 1 / 8, 4: 1 / 8}
    assert options(Draw(3, [])) == {0: 1.0}


def test_drawing_again_makes_nothing_less_likely_and_the_rest_alike() -> None:
    result = options(Draw(4, [0, 1, 2], tries=3))
    assert result == pytest.approx({0: (1 - 1 / 64) / 3, 1: (1 - 1 / 64) / 3, 2: (1 - 1 / 64) / 3, 3: 1 / 64})
    assert sum(result.values()) == pytest.approx(1)


def test_rules_that_draw_alike() -> None:
    draw = parse_rule("dnat ip to numgen random mod 4 map @targets")
    other = parse_rule("dnat ip to numgen random mod 2 map @targets")
    counting = parse_rule("counter dnat ip to numgen random mod 4 map @targets")
    assert alike((draw, draw, draw, other, draw)) == 3
    assert alike((draw,)) == 1
    assert alike((counting, counting)) == 1


def test_repeated_draw_is_no_separate_outcome() -> None:
    targets = Set(name="targets", key=("slot",), data=("ipv4_addr",))
    targets = targets.with_elements(targets.element(str(slot), f"10.0.1.{slot}") for slot in range(3))
    again = [parse_rule("dnat to numgen random mod 4 map @targets")] * 3
    last = parse_rule("dnat to numgen random mod 2 map @targets")
    chain = Chain(name="c", type="nat", hook="prerouting", priority=-100, rules=(*again, last))
    tracer = Tracer([Table(family="ip", name="t", chains=(chain,), sets=(targets,))], LocalAddresses())
    packet = Packet(source="10.0.0.1", destination="10.0.0.2", destination_port=80, input="eth0")
    result = {o.packet.destination: o.probability for o in tracer.outcomes(packet)}
    hit, rest = (1 - 1 / 64) / 3, 1 / 64
    assert result == pytest.approx({"10.0.1.0": hit + rest / 2, "10.0.1.1": hit + rest / 2, "10.0.1.2": hit})
