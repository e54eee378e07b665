"""Gateways and HTTPRoutes as routes and status, held against the tests of Gateway API's conformance suite."""

from itertools import product
from typing import Any

import msgspec
import pytest
from tests.cases.gateway.gateway_api_cases import (
    ALIASES,
    AUTHORITIES,
    CERTIFICATES,
    CLASS,
    CONTROLLER,
    ApiCase,
    ApiRequest,
    CaseMachine,
    api_cases,
    api_facts,
    cluster_cases,
    conformance,
    core_tests,
    services_of,
)

from podwire.gateway.api.backendrefs import VARIANT
from podwire.gateway.api.compiler import CompilerMemo
from podwire.gateway.api.status import FEATURES
from podwire.gateway.api.translate import ApiTranslation, GatewayApiFacts, translate_api
from podwire.gateway.matching import HttpRequest, decide, server_for
from podwire.gateway.routes import Certificate, EntryRoute, FixedAnswer, Forward, HttpRedirect, TrustedAuthority
from podwire.model.gatewayapi import GatewayStatus, ListenerSetStatus
from podwire.model.meta import Condition

CASES = api_cases()
_CONDITIONS = ("Accepted", "Programmed", "ResolvedRefs", "Conflicted", "InsecureFrontendValidationMode")


def _engine_port(keys: list[str], key: str, port: int) -> int:
    return 100_000 * (1 + keys.index(key)) + port


def _facts(case: ApiCase) -> GatewayApiFacts:
    machine = CaseMachine(
        addresses={key: f"10.244.0.{number}" for number, key in enumerate(services_of(case), 1)},
        ports={"http": 3000, "grpc": 3001, "https": 3002, "udp": 3003},
        certificate=lambda key: (
            Certificate(name=key, chain=key, key="key") if key in CERTIFICATES else f"no Secret {key}"
        ),
        authority=lambda key: TrustedAuthority(name=key, chain=key) if key in AUTHORITIES else f"no ConfigMap {key}",
        engine_port=lambda key, port: _engine_port(list(case.gateways), key, port),
        system="authorities",
    )
    return api_facts(case, machine)


def _translated(case: ApiCase) -> ApiTranslation:
    return translate_api(_facts(case))


def _route_of(case: ApiCase, translation: ApiTranslation, request: ApiRequest) -> tuple[EntryRoute | None, int]:
    decision = decide(
        translation.entry,
        HttpRequest(
            port=_engine_port(list(case.gateways), *request.gateway),
            server_name=request.server_name,
            host=str(request.url.netloc),
            method="POST" if request.method == "GRPC" else request.method,
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
        if request.method in ("TCP", "TLS", "UDP"):
            _check_stream(case, translation, request)
            continue
        route, status = _route_of(case, translation, request)
        action = route.action if route is not None else None
        if request.refused:
            continue  # the handshake decides
        if 404 in request.statuses or request.code == "UNIMPLEMENTED":
            assert status == 404, request.request
        elif request.status == 421:
            assert action == FixedAnswer(status=421), request.request
        elif request.code == "UNAVAILABLE":
            assert isinstance(action, Forward) and not _services(translation, action)
        elif request.redirect is not None:
            assert isinstance(action, HttpRedirect), request.request
            assert action.status == request.status
        elif 500 in request.statuses and "/retry/" not in request.target and "mismatch" not in request.target:
            assert action == FixedAnswer(status=500) or (
                isinstance(action, Forward) and not _services(translation, action)
            ), request.request
        else:
            assert isinstance(action, Forward), request.request
            _check_forward(translation, request, action)


def _check_stream(case: ApiCase, translation: ApiTranslation, request: ApiRequest) -> None:
    port = _engine_port(list(case.gateways), *request.gateway)
    listeners = {(listener.port, listener.protocol == "UDP"): listener for listener in translation.entry.listeners}
    listener = listeners[port, request.method == "UDP"]
    target = listener.stream
    if request.method == "TLS":
        server = server_for(listener.servers, request.server_name)
        target = server.stream if server is not None else None
        assert request.refused or (server is not None and bool(server.certificates) != request.passthrough)
    shares = target.backends if target is not None else ()
    backends = translation.entry.backends
    members = [member for share in shares if share.key in backends for member in backends[share.key].shares or (share,)]
    services = {share.key.partition(":")[0]: share.weight for share in members if share.key in backends}
    assert not (request.refused and services), request.request
    if request.service:
        assert set(services) == {request.service}, request.request
    for service, share in request.share.items():
        assert services[service] / sum(services.values()) == share


def _check_forward(translation: ApiTranslation, request: ApiRequest, action: Forward) -> None:
    services = _services(translation, action)
    if request.service:
        assert set(services) == {request.service}, request.request
    if request.share:
        assert {
            key: weight / 100 for key, weight in services.items() if weight or key in request.share
        } == request.share
    if request.status in (408, 504) and "/retry/" not in request.target:
        assert action.timeout or action.attempt_timeout
    mirrors = {mirror.key.partition(":")[0]: mirror.numerator / mirror.denominator for mirror in action.mirrors}
    asked = request.mirrored if isinstance(request.mirrored, dict) else dict.fromkeys(request.mirrored, 100)
    assert mirrors == {key: percent / 100 for key, percent in asked.items()}, request.request


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_objects_get_the_status_that_the_case_says(case: ApiCase) -> None:
    translation = _translated(case)
    for expected in case.expect:
        for conditions, kind in product(_conditions(translation, expected), _CONDITIONS):
            if kind in expected:
                status, _, reason = str(expected[kind]).partition(" ")
                assert conditions[kind].status == status, (expected, conditions[kind])
                assert not reason or conditions[kind].reason == reason, (expected, conditions[kind])


def _conditions(translation: ApiTranslation, expected: dict[str, Any]) -> list[dict[str, Condition]]:
    """The conditions of the object that is expected, at each parent; compares what else is said about it."""
    if "policy" in expected:
        ancestors = translation.policies[expected["policy"]]
        at_policy = [
            entry
            for entry in ancestors
            if f"{entry.ancestor_ref.namespace}/{entry.ancestor_ref.name}" == expected["gateway"]
        ]
        assert at_policy
        return [_by_type(entry.conditions) for entry in at_policy]
    if "route" in expected:
        (parents,) = [parents for (_, key), parents in translation.routes.items() if key == expected["route"]]
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
            if f"{parent.parent_ref.namespace or namespace}/{parent.parent_ref.name}"
            == (expected["set"] if "set" in expected else expected["gateway"])
        ]
        assert at_gateway
        assert {parent.controller_name for parent in at_gateway} == {CONTROLLER}
        return [_by_type(parent.conditions) for parent in at_gateway]
    status: GatewayStatus | ListenerSetStatus
    if "gateway" in expected:
        status = translation.gateways[expected["gateway"]]
        if "sets" in expected:
            assert status.attached_listener_sets == expected["sets"]
    else:
        status = translation.sets[expected["set"]]
    if "listener" not in expected:
        return [_by_type(status.conditions)]
    (listener,) = [entry for entry in status.listeners if entry.name == expected["listener"]]
    assert listener.attached_routes == expected.get("attached", listener.attached_routes)
    if "kinds" in expected:
        kinds = {kind.kind for kind in listener.supported_kinds}
        assert kinds >= set(expected["kinds"])
        assert bool(kinds) == bool(expected["kinds"])
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
        *(
            condition
            for entries in translation.policies.values()
            for entry in entries
            for condition in entry.conditions
        ),
        *(condition for status in translation.sets.values() for condition in status.conditions),
        *(
            condition
            for status in translation.sets.values()
            for listener in status.listeners
            for condition in listener.conditions
        ),
    ]
    assert set(translation.gateways) == set(case.gateways)
    assert {condition.observed_generation for condition in conditions} == {case.generation}


def test_all_core_tests_of_the_http_profile_have_a_case() -> None:
    core = core_tests()
    assert set(core) <= {case.test for case in CASES}
    assert len(core) == 37


def test_every_conformance_test_is_shown_or_has_a_reason() -> None:
    shown = {
        "status": {case.test for case in CASES},
        "engine": {case.test for case in CASES if case.requests},
        "cluster": {case.test for case in cluster_cases()},
    }
    tests = conformance()
    assert len(tests) == 130
    assert {case.test for case in CASES} - {""} <= tests.keys()
    for name, entry in tests.items():
        by = [where for where, names in shown.items() if name in names]
        assert entry.get("not shown") or (by and entry["shown by"] == by), name
        assert entry["support"] in ("core", "extended")


def test_features_explain_the_conformance_tests_that_are_not_shown() -> None:
    missing = {name for name, entry in conformance().items() if "not shown" in entry}
    assert missing == {
        "GatewayInfrastructure",
        "TLSRouteListenerMixedTerminationNotSupported",
        "TLSRouteListenerTerminateNotSupported",
    }
    assert "GatewayInfrastructurePropagation" not in FEATURES
    assert {"TLSRouteModeMixed", "TLSRouteModeTerminate"} <= set(FEATURES)


@pytest.mark.parametrize(
    ("case", "served"),
    [
        ("GatewaySecretMissingReferenceGrant", False),
        ("GatewaySecretInvalidReferenceGrant", False),
        ("GatewaySecretReferenceGrantAllInNamespace", True),
        ("GatewaySecretReferenceGrantSpecific", True),
    ],
)
def test_a_secret_without_a_grant_is_in_no_entry(case: str, served: bool) -> None:
    (translation,) = [_translated(entry) for entry in CASES if entry.test == case]
    certificates = {certificate.chain for certificate in translation.entry.certificates.values()}
    assert ("web/certificate" in certificates) == served
    assert any(":443" in entry.name and "secret" in entry.name for entry in translation.entry.listeners) == served


def test_the_class_names_features_that_conformance_tests_ask_for() -> None:
    features = {feature.name for feature in _translated(CASES[0]).classes[CLASS].supported_features}
    assert {"GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute", "BackendTLSPolicy", "ListenerSet"} <= features
    assert list(FEATURES) == sorted(FEATURES)


@pytest.mark.parametrize("case", [case for case in CASES if case.requests][::4], ids=lambda case: case.name)
def test_routes_read_others_again_when_the_cluster_changed(case: ApiCase) -> None:
    """Without Services all backends are gone; while the version says that nothing changed, nothing is read."""
    memo = CompilerMemo()
    facts = msgspec.structs.replace(_facts(case), version=(1,))
    first = translate_api(facts, memo)
    assert translate_api(facts, memo) == first == translate_api(facts)
    empty = msgspec.structs.replace(facts, upstreams=msgspec.structs.replace(facts.upstreams, services={}))
    kept = translate_api(empty, memo).entry.backends
    assert {key for key in kept if key.endswith(VARIANT)} == {
        key for key in first.entry.backends if key.endswith(VARIANT)
    }
    changed = translate_api(msgspec.structs.replace(empty, version=(2,)), memo)
    assert changed == translate_api(empty) and not changed.entry.backends
