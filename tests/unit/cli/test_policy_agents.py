"""Agents of a cluster elsewhere, asked by its API server, which answers here as Kubernetes' does."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from podwire.cli.main import root

KUBECONFIG = """
current-context: here
contexts: [{name: here, context: {cluster: here}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:%d"}}]
"""
POLICY = {"metadata": {"name": "db", "namespace": "shop"}, "spec": {"podSelector": {}}}
LISTS = {"/apis/networking.k8s.io/v1/networkpolicies": [POLICY]}


def counters(packets: int) -> str:
    drop = {"direction": "ingress", "rule": None, "verdict": "dropped", "packets": packets, "bytes": 60 * packets}
    return json.dumps({"policies": ["shop/db"], **drop})


def logged(node: str, number: int, at: str) -> str:
    ends = {
        "source": "shop/web",
        "destination": "shop/db",
        "sourceAddress": "10.0.0.1",
        "destinationAddress": "10.0.0.2",
    }
    rest = {"node": node, "verdict": "dropped", "direction": "ingress", "protocol": "TCP", "port": 5432}
    return json.dumps({"number": number, "at": at, "why": f"number {number} of {node}", **ends, **rest})


class Api:
    """Nodes by name, and what is behind their ports: a page by ``NAME:PORT/path``, or a status and a text."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, str]] = {}
        self.pages: dict[str, str | tuple[int, str]] = {}
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, text = api.answer(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def answer(self, target: str) -> tuple[int, str]:
        self.asked.append(target)
        path = urlsplit(target).path
        if path == "/api/v1/nodes":
            return 200, self.listed({"metadata": {"name": n, "annotations": a}} for n, a in self.nodes.items())
        if "/proxy/" in path:
            page = self.pages[path.removeprefix("/api/v1/nodes/").replace("/proxy/", "/")]
            return (200, page) if isinstance(page, str) else page
        return 200, self.listed(LISTS.get(path, ()))

    def listed(self, items: object) -> str:
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": list(items)})  # type: ignore[call-overload]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    created = Api()
    (tmp_path / "kubeconfig").write_text(KUBECONFIG % created.server.server_address[1])
    yield created
    created.close()


Run = Callable[..., Result]
"""Runs ``podwire policy`` with these arguments."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def asked(*arguments: str) -> Result:
        return CliRunner().invoke(
            root, ["policy", *arguments, "--kubeconfig", str(tmp_path / "kubeconfig")], standalone_mode=False
        )

    return asked


def enforcing(port: str = "9440") -> dict[str, str]:
    return {"podwire.io/policy": "nftables", "podwire.io/health": port}


def status(code: int, reason: str, message: str) -> tuple[int, str]:
    return code, json.dumps({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})


def test_packets_of_all_nodes_are_added_up(api: Api, run: Run) -> None:
    api.nodes = {"node-1": enforcing(), "node-2": enforcing("80"), "plain": {}}
    api.pages = {"node-1:9440/policy/counters": counters(17), "node-2:80/policy/counters": counters(3)}
    result = run("list")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[-2:] == ["20", "0"]
    assert result.stderr == ""


def test_unreachable_nodes_are_named_and_counts_become_lower_bounds(api: Api, run: Run) -> None:
    api.nodes = {name: enforcing() for name in ("node-1", "node-2", "node-3")} | {"node-4": enforcing("")}
    dead = status(503, "ServiceUnavailable", "error trying to reach service: i/o timeout")
    forbidden = status(403, "Forbidden", 'nodes "node-3:9440" is forbidden')
    api.pages = {
        "node-1:9440/policy/counters": counters(17),
        "node-2:9440/policy/counters": dead,
        "node-3:9440/policy/counters": forbidden,
    }
    result = run("list")
    assert result.stdout.splitlines()[1].split()[-2:] == ["17+", "0+"]
    assert result.stderr.splitlines() == [
        "podwire: no answer from node-2: the API answers 503: error trying to reach service: i/o timeout",
        "podwire: no answer from node-3: the API does not let you ask nodes (get nodes/proxy)",
        "podwire: no answer from node-4: its agent serves no health port on the network "
        "(set health.address and health.port in its configuration)",
    ]
    (line,) = json.loads(run("list", "-o", "json").stdout)
    assert (line["dropped"], line["notAsked"]) == (17, 3)


def test_no_counts_are_shown_when_no_node_answers(api: Api, run: Run) -> None:
    api.nodes = {"node-1": enforcing("")}
    result = run("list")
    assert result.stdout.splitlines()[1].split()[-2:] == ["-", "-"]
    assert result.stderr.startswith("podwire: no answer from node-1: its agent serves no health port on the network")
    api.nodes = {"plain": {}}
    assert run("list").stderr == (
        "podwire: no node says that its agent enforces policies (annotation podwire.io/policy)\n"
    )


def test_counters_of_the_nodes_that_answer(api: Api, run: Run) -> None:
    api.nodes = {"node-1": enforcing(), "node-2": enforcing("")}
    api.pages = {"node-1:9440/policy/counters": counters(17)}
    result = run("counters", "shop/db")
    assert result.return_value == 1
    assert result.stdout.splitlines()[1].split() == ["node-1", "shop/db", "ingress", "-", "dropped", "17", "1020"]
    assert result.stderr.startswith("podwire: no answer from node-2: ")


def test_log_is_read_from_agents_that_serve_it(api: Api, run: Run) -> None:
    api.nodes = {"node-1": enforcing(), "node-2": enforcing()}
    lines = [logged("node-1", number, f"2026-01-01T00:00:0{number}.000Z") for number in (1, 2)]
    api.pages = {
        "node-1:9440/policy/log": "\n".join(lines),
        "node-2:9440/policy/log": (404, "/healthz /readyz /metrics /policy/counters\n"),
    }
    result = run("log")
    assert result.return_value == 1
    assert result.stdout.splitlines() == [f"00:00:0{n}.000 node-1   dropped number {n} of node-1" for n in (1, 2)]
    assert result.stderr == (
        "podwire: no answer from node-2: its agent does not serve its policy log on the network "
        "(set health.policyLog in its configuration)\n"
    )
    assert "/api/v1/nodes/node-1:9440/proxy/policy/log?after=0&last=1000" in api.asked


def test_refused_list_of_nodes_is_an_error(api: Api, run: Run) -> None:
    api.close()
    result = run("counters", "shop/db")
    assert "Connect call failed" in str(result.exception)
