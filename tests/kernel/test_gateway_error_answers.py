"""The Service of ``default-backend`` answers in place of errors (``custom-http-errors``), through a real Envoy."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from tests.cases.gateway.ingress_cases import IngressCase, facts_of
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import Engine, certificate_for, running_engine

from podwire.gateway.ingress.translate import IngressPorts, translate

WEB, SPARE = "127.9.1.1", "127.9.2.1"
_CERTIFICATES = {"": certificate_for("default", ("default.invalid",))}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


class Client:
    """A connection that stays open; answers must not run into each other."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def ask(self, target: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
        """The status of an answer, and what its backend tells; nothing for another answer."""
        answer, body = self._ask(target, method, {"Accept": "text/html"})
        is_json = answer.getheader("Content-Type") == "application/json" and body
        return answer.status, json.loads(body) if is_json else {}

    def headers_of(self, target: str, headers: dict[str, str]) -> dict[str, str]:
        """The headers of an answer, by their names in lower case."""
        answer, _ = self._ask(target, "GET", headers)
        return {name.lower(): text for name, text in answer.getheaders()}

    def _ask(self, target: str, method: str, headers: dict[str, str]) -> tuple[HTTPResponse, bytes]:
        self._connection.request(method, target, headers={"Host": "web.example"} | headers)
        answer = self._connection.getresponse()
        return answer, answer.read()


Serve = Callable[..., Client]


@pytest.fixture
def serve(engine: Engine) -> Iterator[Serve]:
    """Serves an Ingress with annotations and settings; a client of it."""
    with ExitStack() as stack:

        def start(
            annotations: dict[str, str], settings: dict[str, str] | None = None, spare: tuple[str, ...] = (SPARE,)
        ) -> Client:
            paths = {"web.example": {"Prefix /": "web"}, "spare.example": {"Prefix /": "spare"}}
            ingress = {"name": "shop", "hosts": paths, "annotations": annotations}
            case = IngressCase(name="errors", ingresses=(ingress,), requests=(), settings=settings or {})
            ports = IngressPorts(free_port(), free_port())
            addresses = {"web": (WEB,), "spare": spare}
            engine.serve(translate(facts_of(case, addresses, engine.backends.port, _CERTIFICATES, ports)).entry)
            assert not engine.refusals
            return Client(stack.enter_context(closing(HTTPConnection("127.0.0.1", ports.http, timeout=20))))

        yield start


def test_the_default_backend_is_told_of_the_error(serve: Serve) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "404,503"})
    status, told = client.ask("/status/404?a=b")
    assert (status, told["address"], told["line"]) == (200, SPARE, "GET / HTTP/1.1")
    headers = told["headers"]
    expected = {
        "host": "web.example", "x-code": "404", "x-original-uri": "/status/404?a=b", "x-format": "text/html",
        "x-namespace": "shop", "x-ingress-name": "shop", "x-service-name": "web", "x-service-port": "8080",
    }  # fmt: skip
    assert headers.items() >= expected.items()
    assert headers["x-request-id"]


@pytest.mark.parametrize("more", ["", "?padding=10", "?padding=50000", "/chunked", "/chunked?padding=50000"])
def test_short_and_long_answers_are_replaced(serve: Serve, more: str) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "404,503"})
    for method in ("GET", "HEAD", "POST", "GET"):
        status, told = client.ask(f"/status/404{more}", method)
        assert status == 200
        assert method == "HEAD" or told["address"] == SPARE
        status, told = client.ask(f"/{more}")
        assert (status, told["address"]) == (200, WEB), "the connection is in step"


def test_an_answer_that_the_engine_cannot_hold_stays(serve: Serve) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "404"})
    status, told = client.ask("/status/404?padding=200000")
    assert (status, told["address"], len(told["padding"])) == (404, WEB, 200_000)
    assert client.ask("/status/404/chunked?padding=200000") == (500, {}), "its length is not known before"


def test_headers_for_other_origins_stay(serve: Serve) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "404", "enable-cors": "true"})
    headers = client.headers_of("/status/404", {"Origin": "https://other.example"})
    assert headers["access-control-allow-origin"] == "*"
    assert headers["content-type"] == "application/json"


def test_other_statuses_stay(serve: Serve) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "404,503"})
    for status in (200, 403, 500):
        assert [client.ask(f"/status/{status}")[0], client.ask(f"/status/{status}")[1]["address"]] == [status, WEB]


def test_errors_of_the_engine_itself_are_replaced(serve: Serve) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "403", "denylist-source-range": "127.0.0.0/8"})
    status, told = client.ask("/secret")
    assert (status, told["address"], told["headers"]["x-code"]) == (200, SPARE, "403")
    assert told["headers"]["x-original-uri"] == "/secret"


def test_the_error_stays_while_the_default_backend_is_away(serve: Serve) -> None:
    client = serve({"default-backend": "spare", "custom-http-errors": "404"}, spare=())
    status, told = client.ask("/status/404")
    assert (status, told["address"]) == (404, WEB)


def test_statuses_of_the_config_map_apply_to_all_ingresses(serve: Serve) -> None:
    settings = {"custom-http-errors": "404"}
    assert serve({"default-backend": "spare"}, settings).ask("/status/404")[1]["address"] == SPARE
    assert serve({}, settings).ask("/status/404")[1]["address"] == WEB
