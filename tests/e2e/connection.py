"""Requests to the API of a cluster over one connection that stays open.

As a process of kubectl each request would cost 55 ms of processor time.
"""

import atexit
import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import yaml

_TIMEOUT_S = 120
PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
"""Media types of patches."""


class Answer(NamedTuple):
    """Status, headers with names in lower case, and the body: decoded where it is JSON."""

    status: int
    headers: dict[str, str]
    body: Any


class Connection:
    """Sends requests with the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        config = yaml.load(Path(kubeconfig).read_text(), Loader=yaml.CSafeLoader)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]))
            pair.write(base64.b64decode(user["client-key-data"]))
            pair.flush()
            self._tls.load_cert_chain(pair.name)
        self._connection: http.client.HTTPSConnection | None = None
        atexit.register(self.close)

    def close(self) -> None:
        """Closes the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        """The answer to one request; ``content_type`` as a keyword is the header ``Content-Type``.

        The request is sent again over a new connection where the old one has ended.
        """
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        for last in (False, True):
            connection = self._connection or self._connect()
            try:
                connection.request(method, path, body.encode() if body is not None else None, names)
                answer = connection.getresponse()
                content = answer.read()
                break
            except (OSError, http.client.HTTPException) as failure:
                connection.close()
                fresh, self._connection = self._connection is None, None
                assert not (last or fresh), f"{method} {path}: {failure}"
        self._connection = connection
        received = {name.lower(): ", ".join(answer.headers.get_all(name) or ()) for name in answer.headers}
        decoded = "json" in received.get("content-type", "") and content
        return Answer(answer.status, received, json.loads(content) if decoded else content.decode(errors="replace"))

    def do(self, method: str, path: str, body: Any = None, *, patch: str = "merge", **query: str) -> Any:
        """The body of the answer to a request that succeeds; ``body`` is encoded as JSON, ``patch`` is its kind.

        Raises: AssertionError when the API refuses.
        """
        answer = self.ask(method, path, body, patch=patch, **query)
        assert answer.status < http.client.BAD_REQUEST, f"{method} {path}: {answer.status} {answer.body}"
        return answer.body

    def ask(self, method: str, path: str, body: Any = None, *, patch: str = "merge", **query: str) -> Answer:
        """As :meth:`do`, but any answer is returned."""
        where = f"{path}?{urlencode(query)}" if query else path
        if body is None:
            return self.send(method, where)
        kind = PATCHES[patch] if method == "PATCH" else "application/json"
        return self.send(method, where, json.dumps(body), content_type=kind)

    def watch(self, path: str, **query: str) -> Generator[dict[str, Any]]:
        """The events of a watch, over a connection of its own that is closed with the iterator.

        Raises: AssertionError when the API refuses, or when the watch ends.
        """
        connection = self._connect()
        try:
            connection.request("GET", f"{path}?{urlencode({'watch': '1', **query})}")
            answer = connection.getresponse()
            assert answer.status == http.client.OK, f"watch {path}: {answer.status} {answer.read().decode()}"
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()
        raise AssertionError(f"the watch of {path} ended")

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        return http.client.HTTPSConnection(host, port, context=self._tls, timeout=_TIMEOUT_S)


@cache
def connection_of(kubeconfig: str, _changed_ns: int) -> Connection:
    """The connection with the credentials of a kubeconfig as the file is now."""
    return Connection(kubeconfig)
