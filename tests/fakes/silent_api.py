"""An API server in threads that lists fixed objects, and from some moment on takes connections and never answers."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SilentApi(ThreadingHTTPServer):
    """``listed`` has the objects of each plural; ``silence`` makes every later request wait."""

    daemon_threads = True

    def __init__(self, listed: Mapping[str, list[dict[str, Any]]]) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.listed = listed
        self.silence = threading.Event()
        self.over = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores connections that end with their client."""

    def kubeconfig(self) -> str:
        """A kubeconfig for this server, as JSON."""
        server = f"http://127.0.0.1:{self.server_address[1]}"
        return json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {}}],
            }
        )


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SilentApi

    def do_GET(self) -> None:
        """Lists, or keeps a watch open."""
        api = self.server
        path, _, query = self.path.partition("?")
        if api.silence.is_set():
            api.over.wait()
            return
        if "watch=true" in query:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            api.over.wait()
            return
        items = api.listed.get(path.rpartition("/")[2], [])
        body = json.dumps({"metadata": {"resourceVersion": "2"}, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


@contextmanager
def silent_api(listed: Mapping[str, list[dict[str, Any]]]) -> Iterator[SilentApi]:
    """Serves in a thread until the end of the block."""
    api = SilentApi(listed)
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield api
    finally:
        api.over.set()
        api.shutdown()
        thread.join()
        api.server_close()
