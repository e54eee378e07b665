"""Which pods an answer needs."""

from msgspec.structs import replace
from tests.unit.why.policies.test_explainer import answered, endpoint, hop

from podwire.why.answer import ConnectionEnd
from podwire.why.policies.connections import ends_of


def test_pods_are_named_where_they_are_known_by_name() -> None:
    asked = replace(
        answered("10.0.0.1", "10.0.0.2", 80), source=ConnectionEnd(kind="Pod", name="a/b", address="10.0.0.1")
    )
    assert ends_of(asked) == (frozenset({"a/b"}), frozenset({"10.0.0.2"}))


def test_endpoints_stand_for_a_service() -> None:
    known = replace(endpoint("10.0.0.3", 80), pod="a/c")
    spare = replace(endpoint("10.0.0.4", 80), pod="a/d", used=False)
    through = hop(outcome="forwarded", endpoints=(known, endpoint("10.0.0.5", 80), spare))
    result = ends_of(answered("10.0.0.1", "10.96.0.1", 80, through))
    assert result == (frozenset({"a/c"}), frozenset({"10.0.0.1", "10.0.0.5"}))


def test_nodes_and_those_outside_are_no_pods() -> None:
    asked = replace(
        answered("192.168.0.1", "192.0.2.1", 80),
        source=ConnectionEnd(kind="Node", name="n1", address="192.168.0.1"),
        target=ConnectionEnd(kind="External", address="192.0.2.1"),
    )
    assert ends_of(asked) == (frozenset(), frozenset())
