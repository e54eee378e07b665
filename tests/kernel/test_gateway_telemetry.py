"""What a real Envoy tells of requests: the access log as JSON, metrics, and whether it is ready."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.kernel.gateway_engine import SETTINGS, ClientRequest, Engine
from tests.kernel.gateway_site import PLAIN, SECURE, WEB, serve_site

from podwire.gateway.ingress.translate import IngressPorts
from podwire.runtime.polling import wait_until


class Site(NamedTuple):
    """The engine, its ports, and the file of its access log."""

    engine: Engine
    ports: IngressPorts
    log: Path

    def line_of(self, target: str) -> dict[str, Any]:
        """The line of a request in the log."""

        def lines() -> list[dict[str, Any]]:
            entries = [json.loads(line) for line in self.log.read_text().splitlines()]
            return [entry for entry in entries if entry["path"] == target]

        assert wait_until(lambda: bool(lines()), 30)
        (line,) = lines()
        return line


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with TemporaryDirectory(prefix="gw") as directory:
        log = Path(directory) / "access.log"
        engine = Engine(Path(directory), msgspec.structs.replace(SETTINGS, access_log=str(log)))
        yield Site(engine, serve_site(engine), log)
        engine.close()


def test_each_request_is_a_line_of_json(site: Site) -> None:
    headers = {"User-Agent": 'a "quoted" agent', "X-Request-ID": "of-the-client"}
    site.engine.ask(site.ports.http, ClientRequest(host=PLAIN, target="/admin/x?y=1", headers=headers))
    line = site.line_of("/admin/x?y=1")
    assert (line["client"], line["method"], line["host"], line["status"]) == ("127.0.0.1", "GET", PLAIN, 200)
    assert (line["scheme"], line["protocol"], line["details"]) == ("http", "HTTP/1.1", "via_upstream")
    assert line["route"] == "Ingress shop/plain spec.rules[0].http.paths[1]"
    assert (line["backend"], line["endpoint"]) == ("shop/admin:8080", f"127.9.2.1:{site.engine.backends.port}")
    assert (line["user_agent"], line["request_id"]) == ('a "quoted" agent', "of-the-client")
    assert line["duration_ms"] >= 0 and line["sent_bytes"] > 0 and line["time"].endswith("Z")


def test_a_request_without_a_route_is_logged_too(site: Site) -> None:
    site.engine.ask(site.ports.https, ClientRequest(host="absent.example", target="/nowhere", server_name=SECURE))
    line = site.line_of("/nowhere")
    assert (line["status"], line["route"], line["backend"]) == (404, None, None)
    assert (line["flags"], line["scheme"]) == ("NR", "https")


def _page(site: Site, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{site.engine.ready_port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def test_metrics_count_requests_of_listeners_and_backends(site: Site) -> None:
    def counted(name: str, labels: str) -> float:
        lines = [line for line in _page(site, "/metrics").splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if labels in line)

    backend = ("envoy_cluster_upstream_rq_total", 'envoy_cluster_name="shop/web_8080"')
    listener = ("envoy_http_downstream_rq_completed", 'prefix="ingress-http"')
    before = counted(*backend), counted(*listener)
    for _ in range(3):
        answer = site.engine.ask(site.ports.http, ClientRequest(host=PLAIN))
        assert answer.backend["address"] == WEB
    assert wait_until(lambda: (counted(*backend), counted(*listener)) == (before[0] + 3, before[1] + 3), 30)
    assert _page(site, "/ready") == ""


def test_an_engine_serves_without_an_access_log() -> None:
    with TemporaryDirectory(prefix="gw") as directory:
        engine = Engine(Path(directory), msgspec.structs.replace(SETTINGS, access_log=""))
        try:
            ports = serve_site(engine)
            assert engine.ask(ports.http, ClientRequest(host=PLAIN)).status == 200
            assert not engine.refusals
        finally:
            engine.close()
