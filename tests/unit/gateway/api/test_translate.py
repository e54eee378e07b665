"""Gateways and HTTPRoutes as routes and status, held against the tests of Gateway API's conformance suite."""

from itertools import product
from typing import Any

import pytest
from tests.cases.gateway.gateway_api_cases import (
    ALIASES,
    CERTIFICATES,
    CLASS,
    CONTROLLER,
    SERVICES,
    ApiCase,
    ApiRequest,
    api_cases,
    api_facts,
    core_tests,
)

from podwire.gateway.api.translate import ApiTranslation, translate_api
from podwire.gateway.matching import HttpRequest, decide
from podwire.gateway.routes import Certificate, EntryRoute, FixedAnswer, Forward, HttpRedirect
from podwire.model.meta import Condition

CASES = api_cases()


def _engine_port(keys: list[str], key: str, port: int) -> int:
    return 10000 + 100 * keys.index(key) + (80, 443, 8080, 8090).index(port)


def _translated(case: ApiCase) -> ApiTranslation:
    return translate_api(
        api_facts(
            case,
            {key: (f"10.244.0.{number}", 3000) for number, key in enumerate(SERVICES, 1)},
            lambda key: Certificate(name=key, chain=key, key="key") if key in CERTIFICATES else f"no Secret {key}",
            lambda key, port: _engine_port(list(case.gateways), key, port),
        )
    )


def _route_of(case: ApiCase, translation: ApiTranslation, request: ApiRequest) -> tuple[EntryRoute | None, int]:
    decision = decide(
        translation.entry,
        HttpRequest(
            port=_engine_port(list(case.gateways), *request.gateway),
            server_name=request.server_name,
            host=str(request.url.netloc),
            method=request.method,
            path=request.target,
            headers={name.lower(): text for name, text in request.headers.items()},
        ),
    )
    return decision.route, decision.status


def _services(translation: ApiTranslation, action: Forward) -> dict[str, int]:
    backends = translation.entry.backends
    shares = {share.key.partition(":")[0]: share.weight for share in action.backends if share.key in backends}
    return {ALIASES.get(key, key): weight for key, weight in shares.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_requests_take_the_route_that_the_case_says(case: ApiCase) -> None:
    translation = _translated(case)
    for request in case.requests:
        route, status = _route_of(case, translation, request)
        action = route.action if route is not None else None
        if request.status == 404:
            assert status == 404, request.request
        elif request.redirect is not None:
            assert isinstance(action, HttpRedirect), request.request
            assert action.status == request.status
        elif request.status == 500:
            assert action == FixedAnswer(status=500) or (
                isinstance(action, Forward) and not _services(translation, action)
            ), request.request
        else:
            assert isinstance(action, Forward), request.request
            _check_forward(translation, request, action)


def _check_forward(translation: ApiTranslation, request: ApiRequest, action: Forward) -> None:
    services = _services(translation, action)
    if request.service:
        assert set(services) == {request.service}, request.request
    if request.share:
        assert {key: weight / 100 for key, weight in services.items()} == request.share
    if request.status in (408, 504):
        assert action.timeout or action.attempt_timeout
    mirrors = {mirror.key.partition(":")[0]: mirror.numerator / mirror.denominator for mirror in action.mirrors}
    asked = request.mirrored if isinstance(request.mirrored, dict) else dict.fromkeys(request.mirrored, 100)
    assert mirrors == {key: percent / 100 for key, percent in asked.items()}, request.request


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_objects_get_the_status_that_the_case_says(case: ApiCase) -> None:
    translation = _translated(case)
    for expected in case.expect:
        for conditions, kind in product(_conditions(translation, expected), ("Accepted", "Programmed", "ResolvedRefs")):
            if kind in expected:
                status, _, reason = str(expected[kind]).partition(" ")
                assert conditions[kind].status == status, (expected, conditions[kind])
                assert not reason or conditions[kind].reason == reason, (expected, conditions[kind])


def _conditions(translation: ApiTranslation, expected: dict[str, Any]) -> list[dict[str, Condition]]:
    """The conditions of the object that is expected, at each parent; compares what else is said about it."""
    if "route" in expected:
        parents = translation.routes[expected["route"]]
        namespace = expected["route"].partition("/")[0]
        if "accepted parents" in expected:
            accepted = [
                condition
                for parent in parents
                for condition in parent.conditions
                if condition.type == "Accepted" and condition.status == "True"
            ]
            assert len(accepted) == expected["accepted parents"]
            return []
        at_gateway = [
            parent
            for parent in parents
            if f"{parent.parent_ref.namespace or namespace}/{parent.parent_ref.name}" == expected["gateway"]
        ]
        assert at_gateway
        assert {parent.controller_name for parent in at_gateway} == {CONTROLLER}
        return [_by_type(parent.conditions) for parent in at_gateway]
    status = translation.gateways[expected["gateway"]]
    if "listener" not in expected:
        return [_by_type(status.conditions)]
    (listener,) = [entry for entry in status.listeners if entry.name == expected["listener"]]
    assert listener.attached_routes == expected["attached"]
    if "kinds" in expected:
        assert [kind.kind for kind in listener.supported_kinds] == expected["kinds"]
    return [_by_type(listener.conditions)]


def _by_type(conditions: tuple[Condition, ...]) -> dict[str, Condition]:
    return {condition.type: condition for condition in conditions}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_condition_has_the_generation_of_its_object(case: ApiCase) -> None:
    translation = _translated(case)
    conditions = [
        *translation.classes[CLASS].conditions,
        *(condition for status in translation.gateways.values() for condition in status.conditions),
        *(
            condition
            for status in translation.gateways.values()
            for listener in status.listeners
            for condition in listener.conditions
        ),
        *(condition for parents in translation.routes.values() for entry in parents for condition in entry.conditions),
    ]
    assert set(translation.gateways) == set(case.gateways)
    assert {condition.observed_generation for condition in conditions} == {case.generation}


def test_all_core_tests_of_the_http_profile_have_a_case() -> None:
    core = core_tests()
    assert set(core) <= {case.test for case in CASES}
    assert len(core) == 37
