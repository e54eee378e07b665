"""A real Envoy serves Gateways and HTTPRoutes as the cases of Gateway API's conformance suite say."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
from tests.cases.gateway.gateway_api_cases import (
    CERTIFICATES,
    SERVICES,
    ApiCase,
    ApiRequest,
    api_cases,
    api_facts,
)
from tests.kernel.gateway_engine import Answer, ClientRequest, Engine, certificate_for, free_port

from podwire.gateway.api.translate import translate_api
from podwire.gateway.routes import Certificate
from podwire.runtime.polling import wait_until

CASES = tuple(case for case in api_cases() if case.requests)
_ADDRESSES = {key: f"127.8.0.{number}" for number, key in enumerate(SERVICES, 1)}
_SERVICES = {address: key for key, address in _ADDRESSES.items()}
_WELL_KNOWN = {"http": 80, "https": 443}
Ports = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with TemporaryDirectory(prefix="gw") as directory:
        running = Engine(Path(directory))
        yield running
        running.close()


@pytest.fixture(scope="module")
def certificates() -> dict[str, Certificate]:
    return {key: certificate_for(key, hosts) for key, hosts in CERTIFICATES.items()}


def serve(engine: Engine, case: ApiCase, certificates: dict[str, Certificate]) -> Ports:
    """Puts a case on the engine; the port of loopback for each port of a Gateway."""
    ports: Ports = {}
    facts = api_facts(
        case,
        {key: (address, engine.backends.port) for key, address in _ADDRESSES.items()},
        lambda key: certificates.get(key, f"Secret {key} does not exist"),
        lambda key, port: ports.setdefault((key, port), free_port()),
    )
    engine.serve(translate_api(facts).entry)
    return ports


def ask(engine: Engine, ports: Ports, request: ApiRequest) -> Answer:
    """The answer to a request of a case."""
    more = {"X-Backend-Headers": ",".join(f"{name}:{text}" for name, text in request.backend_headers.items())}
    wire = ClientRequest(
        method=request.method,
        host=str(request.url.netloc),
        target=request.target,
        headers=request.headers | (more if request.backend_headers else {}),
        server_name=request.server_name,
    )
    return engine.ask(ports[request.gateway], wire)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_envoy_answers_as_the_case_says(engine: Engine, certificates: dict[str, Certificate], case: ApiCase) -> None:
    ports = serve(engine, case, certificates)
    assert not engine.refusals
    for request in case.requests:
        before = Counter(engine.backends.requests)
        answers = [ask(engine, ports, request) for _ in range(request.repeat)]
        _check_answer(request, answers[0])
        if request.status == 200:
            _check_backend(request, answers[0])
        _check_repeated(request, answers)
        for service in request.mirrored if isinstance(request.mirrored, tuple) else ():
            address = _ADDRESSES[service]
            assert wait_until(lambda: engine.backends.requests[address] > before[address], 20)  # noqa: B023


def _check_answer(request: ApiRequest, answer: Answer) -> None:
    assert answer.status == request.status, request.request
    for name, text in request.answer_headers.items():
        assert ",".join(answer.headers.get(name.lower(), [])) == text, (request.request, name)
    for name in request.no_answer_headers:
        assert name.lower() not in answer.headers, request.request
    if request.redirect is not None:
        (location,) = answer.headers["location"]
        url, expected = urlsplit(location), request.redirect
        assert url.scheme == expected.get("scheme", request.url.scheme), location
        assert url.hostname == expected.get("host", request.url.hostname), location
        if "path" in expected:
            assert url.path == expected["path"], location
        port = expected.get("port", "")
        assert str(url.port or "") in {port} | ({str(_WELL_KNOWN[url.scheme])} if not port else set()), location


def _check_backend(request: ApiRequest, answer: Answer) -> None:
    if request.service:
        assert _SERVICES[answer.backend["address"]] == request.service, request.request
    assert answer.backend["line"].split()[1] == (request.path or request.target), request.request
    if request.host:
        assert answer.backend["headers"]["host"] == request.host
    for name, text in request.request_headers.items():
        assert answer.backend["headers"].get(name.lower()) == text, (request.request, name)
    for name in request.no_request_headers:
        assert name.lower() not in answer.backend["headers"], request.request


def _check_repeated(request: ApiRequest, answers: list[Answer]) -> None:
    services = Counter(_SERVICES.get(answer.backend.get("address", ""), "") for answer in answers)
    for service, share in request.share.items():
        assert abs(services[service] / len(answers) - share) <= 0.05, services
    if request.named_by_header:
        for answer in answers:
            name = answer.backend["headers"][request.named_by_header.lower()]
            assert _SERVICES[answer.backend["address"]].endswith(name)
