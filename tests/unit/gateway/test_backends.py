"""Which endpoints of a Service an engine uses: those that are ready, and of these the near ones."""

import pytest

from podwire.cluster.names import GATEWAY_HEALTH_PATH
from podwire.gateway.backends import Place, UpstreamFacts, endpoints_of, resolve
from podwire.model.meta import ObjectMeta
from podwire.model.service import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    HintTarget,
    Service,
    ServicePort,
    ServiceSpec,
)

_PORT = ServicePort(name="http", port=80)


def _endpoint(number: int, zone: str = "", node: str = "") -> Endpoint:
    zones = (HintTarget(zone),) if zone else ()
    nodes = (HintTarget(node),) if node else ()
    hints = EndpointHints(for_zones=zones, for_nodes=nodes) if zone or node else None
    return Endpoint(addresses=(f"10.0.0.{number}",), hints=hints)


def _slice(*endpoints: Endpoint) -> EndpointSlice:
    return EndpointSlice(ports=(EndpointPort(name="http", port=8080),), endpoints=endpoints)


def _chosen(place: Place, *endpoints: Endpoint) -> list[int]:
    return [int(entry.address[-1]) for entry in endpoints_of((_slice(*endpoints),), _PORT, place)]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(node="n1", zone="a"), [1]),
        (Place(node="n9", zone="a"), [1, 2]),
        (Place(node="n9", zone="b"), [3]),
        (Place(node="n9", zone="c"), [1, 2, 3]),
        (Place(), [1, 2, 3]),
    ],
)
def test_hints_choose_the_node_then_the_zone(place: Place, expected: list[int]) -> None:
    assert _chosen(place, _endpoint(1, "a", "n1"), _endpoint(2, "a", "n2"), _endpoint(3, "b", "n3")) == expected


def test_one_endpoint_without_hints_makes_all_of_them_count() -> None:
    assert _chosen(Place(zone="a"), _endpoint(1, "a"), _endpoint(2)) == [1, 2]


def test_an_endpoint_that_ends_serves_only_alone() -> None:
    ending = Endpoint(
        addresses=("10.0.0.2",), conditions=EndpointConditions(ready=False, serving=True, terminating=True)
    )
    assert _chosen(Place(), _endpoint(1), ending) == [1]
    assert _chosen(Place(), ending) == [2]


@pytest.mark.parametrize(("text", "path"), [("/healthz", "/healthz"), ("healthz", ""), ("/a\nb", "")])
def test_an_annotation_asks_for_health_checks(text: str, path: str) -> None:
    meta = ObjectMeta(name="web", namespace="shop", annotations={GATEWAY_HEALTH_PATH: text})
    service = Service(metadata=meta, spec=ServiceSpec(ports=(_PORT,)))
    facts = UpstreamFacts(services={"shop/web": service}, slices=lambda _key: ())
    backend = resolve(facts, "shop", "web", 80).backend
    assert backend is not None and backend.health_path == path
