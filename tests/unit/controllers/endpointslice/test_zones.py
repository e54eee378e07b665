"""Hints by the size of zones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controllers.endpointslice.endpoints import Group
from podwire.controllers.endpointslice.zones import automatic, millicores, share_out, shares, unfair, with_hints
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.node import ZONE_LABEL, Node, NodeStatus
from podwire.model.service import Endpoint, EndpointConditions, Service


def node(zone: str, cpu: str = "4", ready: str = "True", **labels: str) -> Node:
    conditions = (Condition(type="Ready", status=ready),)
    return Node(
        metadata=ObjectMeta(name=f"n-{zone}", labels={ZONE_LABEL: zone, **labels}),
        status=NodeStatus(conditions=conditions, allocatable={"cpu": cpu} if cpu else {}),
    )


def spread(counts: dict[str, int], **by_zone: float) -> dict[str, int]:
    """Endpoints for each zone, given those in each; empty where that cannot be fair."""
    ends: list[tuple[tuple[object, str], str]] = [
        ((0, f"{z}{n}"), z) for z, count in counts.items() for n in range(count)
    ]
    result = list(share_out(ends, by_zone).values()) if not unfair([zone for _, zone in ends], by_zone) else []
    return {zone: result.count(zone) for zone in sorted(set(result))}


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4000), ("0.5", 500), ("3920m", 3920), ("", 0), ("many", 0), ("-1", 0)]
)
def test_millicores(text: str, value: int) -> None:
    assert millicores(text) == value


def test_shares() -> None:
    assert shares([node("a", "3"), node("b", "1"), node("a", "4")]) == {"a": 7 / 8, "b": 1 / 8}
    assert shares([node("a"), node("b"), node("c", ready="False")]) == {"a": 0.5, "b": 0.5}
    assert shares([node("a"), node("b", **{"node-role.kubernetes.io/control-plane": ""})]) == {}
    assert shares([node("a"), node("b"), node("")]) == {}
    assert shares([node("a"), node("b", "")]) == {}


@pytest.mark.parametrize(
    ("counts", "zones", "expected"),
    [
        ({"a": 3, "b": 3}, {"a": 0.5, "b": 0.5}, {"a": 3, "b": 3}),
        ({"a": 6}, {"a": 0.5, "b": 0.5}, {"a": 3, "b": 3}),
        ({"a": 6, "b": 5}, {"a": 0.5, "b": 0.5}, {"a": 6, "b": 5}),
        ({"a": 9, "b": 1}, {"a": 0.75, "b": 0.25}, {"a": 7, "b": 3}),
        ({"a": 4, "x": 4}, {"a": 0.5, "b": 0.5}, {"a": 4, "b": 4}),
        ({"a": 1}, {"a": 0.5, "b": 0.5}, {}),
        ({"a": 1, "b": 1}, {"a": 0.9, "b": 0.1}, {}),
        ({"a": 3, "": 3}, {"a": 0.5, "b": 0.5}, {}),
        ({"a": 3}, {}, {}),
    ],
)
def test_sharing_out(counts: dict[str, int], zones: dict[str, float], expected: dict[str, int]) -> None:
    assert spread(counts, **zones) == expected


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40), min_size=1),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
)
def test_every_endpoint_serves_one_zone_and_every_zone_gets_enough(counts: dict[str, int], sizes: list[int]) -> None:
    zones = {zone: size / sum(sizes) for zone, size in zip("abcd", sizes, strict=False)}
    result = spread(counts, **zones)
    if result:
        total = sum(counts.values())
        assert sum(result.values()) == total
        assert all(result.get(zone, 0) * 1.2 >= share * total - 1e-6 for zone, share in zones.items())
        assert set(result) <= set(zones)


def test_hints_are_for_ready_endpoints_alone() -> None:
    def end(name: str, zone: str, *, ready: bool = True) -> Endpoint:
        return Endpoint(addresses=(name,), zone=zone, conditions=EndpointConditions(ready=ready))

    group = Group("IPv4", ())
    expected = {group: {"1": end("1", "a"), "2": end("2", "a"), "3": end("3", "a", ready=False)}}
    hinted, reasons = with_hints(expected, {"x": node("a"), "y": node("b")})
    result = hinted[group]
    assert reasons == {"IPv4": ""}
    assert {k: [t.name for t in e.hints.for_zones] if e.hints else None for k, e in result.items()} == {
        "1": ["a"], "2": ["b"], "3": None,
    }  # fmt: skip
    hinted, reasons = with_hints(expected, {"x": node("a")})
    assert all(e.hints is None for e in hinted[group].values())
    assert reasons["IPv4"].startswith("Insufficient Node information")


@pytest.mark.parametrize(
    ("zones", "by_zone", "arguments"),
    [
        ("ab", {}, "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"),
        ("a", {"a": 0.5, "b": 0.5}, "Insufficient number of endpoints (1 endpoints, 2 zones)"),
        ("aab", {"a": 0.9, "b": 0.1}, "Minimum allocation of required endpoints exceeds overload threshold (3 endp"),
        (["a", "b", "a", ""], {"a": 0.5, "b": 0.5}, "One or more endpoints do not have a zone specified"),
        ("aabb", {"a": 0.5, "b": 0.5}, ""),
    ],
)
def test_why_there_are_no_hints(zones: str, by_zone: dict[str, float], arguments: str) -> None:
    result = unfair(list(zones), by_zone)
    assert result.startswith(arguments)
    assert bool(result) == bool(arguments)


@pytest.mark.parametrize(("text", "expected"), [("Auto", True), ("auto", True), ("Disabled", False), ("", False)])
def test_topology_annotation_requests_hints(text: str, expected: bool) -> None:
    for name in ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"):
        assert automatic(Service(metadata=ObjectMeta(name="s", annotations={name: text}))) is expected
