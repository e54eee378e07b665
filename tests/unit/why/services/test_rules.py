"""How rules for Services are read: the mode in force, asked of the proxy itself, and nodes without a proxy."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.proxy.servicemap import NodeFacts
from podwire.why.nodes import NodeAccess
from podwire.why.services.rules import ask_mode, read_rules


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/proxyMode" else 404)
        self.end_headers()
        self.wfile.write(b"iptables")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served(page: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_of_the_mode() -> None:
    with served(Page) as port:
        assert ask_mode(None, ("127.0.0.1", port)) == "iptables"
        assert ask_mode(None, ("0.0.0.0", port)) == "iptables"


def test_nobody_answers_or_somebody_else() -> None:
    with served(BaseHTTPRequestHandler) as port:
        assert ask_mode(None, ("127.0.0.1", port)) == ""
    assert ask_mode(None, ("127.0.0.1", port)) == ""


def test_a_node_whose_services_are_somebody_elses() -> None:
    access = NodeAccess(services=NodeFacts(name="a"), parts=frozenset(("cni", "policy")), readable=False)
    rules = read_rules(access, Node(metadata=ObjectMeta(name="a")), None, {}, "")
    assert (rules.mode, rules.planned, rules.held) == ("", None, None)
    (note,) = rules.notes
    assert "leaves Services to another proxy" in note
