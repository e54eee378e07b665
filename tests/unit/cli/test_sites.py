"""What is known of nodes: the mode in force, asked of the proxy itself, and nodes without a proxy."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from podwire.agent.config import AgentConfig
from podwire.cli.sites import Known, Nodes, ask_mode, device_to
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.state.network import NetworkState
from podwire.state.route import Address, Route


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
    config = AgentConfig(node_name="a", parts=("cni", "policy"), cluster_cidrs=(), service_cidrs=())
    nodes = Nodes(lambda _: Known(config=config, readable=False), planned=True)
    node = Node(metadata=ObjectMeta(name="a"))
    view = nodes.view(node, nodes.facts(node), {})
    assert (view.mode, view.planned, view.held) == ("", None, None)
    (note,) = nodes.notes(node)
    assert "leaves Services to another proxy" in note


def test_an_address_is_reached_by_the_narrowest_route_or_network_of_the_nodes_own() -> None:
    state = NetworkState(
        routes=(
            Route(dst="default", via="192.0.2.1", link="eth0"),
            Route(dst="10.244.0.0/24", kind="unreachable"),
            Route(dst="10.244.0.2/32", link="veth1"),
            Route(dst="10.244.1.0/24", via="192.0.2.7", link="tunnel"),
        ),
        addresses=(Address(cidr="10.244.0.1/24", link="cni0"), Address(cidr="fd10::1/64", link="cni0")),
    )
    ways = {"10.244.0.2": "veth1", "10.244.0.9": "cni0", "10.244.1.9": "tunnel", "198.51.100.1": "eth0"}
    assert {address: device_to(state, address) for address in ways} == ways
    assert device_to(state, "fd10::9") == "cni0"
    assert device_to(state, "fd99::9") == "eth0"
