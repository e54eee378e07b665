"""The mode in force, asked of the proxy itself."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from podwire.cli.sites import ask_mode


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
    thread = threading.Thread(target=server.serve_forever)
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
