"""Questions of translations: recorded answers, and backends that stay the same objects."""

from podwire.gateway.backends import Place, UpstreamFacts
from podwire.gateway.lookups import BackendLookups, Recorder, identical, still_answered
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec

_SERVICE = Service(
    metadata=ObjectMeta(name="web", namespace="shop"), spec=ServiceSpec(ports=(ServicePort(name="http", port=80),))
)


def _slice(address: str) -> EndpointSlice:
    return EndpointSlice(ports=(EndpointPort(name="http", port=8080),), endpoints=(Endpoint(addresses=(address,)),))


def _facts(*slices: EndpointSlice, place: Place | None = None) -> UpstreamFacts:
    services = {"shop/web": _SERVICE}
    return UpstreamFacts(services=services, slices=lambda _key: slices, place=place or Place())


def test_a_backend_stays_while_its_service_and_endpoints_do() -> None:
    lookups, endpoints = BackendLookups(), _slice("10.0.0.1")
    lookups.renew(_facts(endpoints))
    first = lookups.resolve("shop", "web", 80)
    lookups.renew(_facts(endpoints))
    assert lookups.resolve("shop", "web", 80) is first
    lookups.renew(_facts(_slice("10.0.0.2")))
    backend = lookups.resolve("shop", "web", 80).backend
    assert backend is not None and [end.address for end in backend.endpoints] == ["10.0.0.2"]
    second = lookups.resolve("shop", "web", 80)
    lookups.renew(_facts(endpoints, place=Place(node="node-1")))
    assert lookups.resolve("shop", "web", 80) is not second
    lookups.renew(UpstreamFacts(services={}, slices=lambda _key: ()))
    assert lookups.resolve("shop", "web", 80).problem == "Service shop/web does not exist"


def test_answers_are_compared_with_those_that_were_recorded() -> None:
    values = {"a": 1}
    recorder = Recorder()
    assert recorder.ask(values.get, "a") == 1
    assert recorder.ask(values.get, "b") is None
    assert still_answered(recorder.answers)
    values["b"] = 2
    assert not still_answered(recorder.answers)


def test_only_the_very_same_objects_are_identical() -> None:
    first, second = _slice("10.0.0.1"), _slice("10.0.0.1")
    assert first == second
    assert identical([first], (first,))
    assert not identical([first], [second])
    assert not identical([first], [])
