"""HTTP requests, complete answers, and the limits of a connection, as values."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits of one connection, in bytes and seconds; ``connections`` is a limit of the server."""

    body_bytes: int = 3 << 20
    header_bytes: int = 64 << 10
    idle_s: float = 300.0
    """A connection without a request is closed after this time."""
    header_s: float = 32.0
    """A request's header must arrive within this time from its first byte; 32 s as in kube-apiserver."""
    arrival_s: float = 60.0
    """A whole request must arrive within this time from its first byte."""
    connections: int = 10_000
    keep_alive: bool = True
    """Whether a connection may carry another request after an answer."""


PROBE_LIMITS = Limits(
    body_bytes=8 << 10, header_bytes=8 << 10, idle_s=10.0, header_s=10.0, arrival_s=10.0, keep_alive=False
)
"""For endpoints of probes, scrapes and pages: a connection carries one GET and is then closed."""

TEXT = "text/plain; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of metrics in Prometheus' text form."""


class Request:
    """One request; header names are in lower case; of a repeated header ``headers`` has the last line."""

    __slots__ = (
        "_path",
        "_query",
        "annotations",
        "body",
        "headers",
        "method",
        "peer",
        "peer_certificate",
        "repeated",
        "target",
    )

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.peer = ""
        self.peer_certificate: dict[str, Any] | None = None
        self.annotations: dict[str, str] = {}
        """What handlers record about the request, for a log of requests."""
        self.repeated: Mapping[str, list[str]] = {}
        """All lines of each header that came more than once."""
        path, _, query = target.partition("?")
        self._path = path
        self._query = query

    @property
    def path(self) -> str:
        """The path with escapes decoded."""
        return unquote(self._path) if "%" in self._path else self._path

    @property
    def raw_path(self) -> str:
        """The path as sent."""
        return self._path

    @property
    def raw_query(self) -> str:
        """The text behind the question mark, as sent."""
        return self._query

    def header_values(self, name: str) -> list[str]:
        """The values of all lines of a header, in order."""
        if name in self.repeated:
            return self.repeated[name]
        return [self.headers[name]] if name in self.headers else []

    def segments(self) -> list[str]:
        """The path segments, each decoded; empty segments are left out."""
        segments = [segment for segment in self._path.split("/") if segment]
        return [unquote(segment) for segment in segments] if "%" in self._path else segments

    def query(self) -> dict[str, str]:
        """The query parameters; of a repeated parameter the first value, as in Kubernetes."""
        parameters: dict[str, str] = {}
        for name, value in self.query_pairs():
            parameters.setdefault(name, value)
        return parameters

    def query_pairs(self) -> list[tuple[str, str]]:
        """The query parameters in order, with repeated ones."""
        return parse_qsl(self._query, keep_blank_values=True) if self._query else []


def is_true(value: str | None) -> bool:
    """A boolean query parameter as Kubernetes reads it; ``value`` is None when the parameter is absent.

    False: an absent parameter, ``false`` (in any case) and ``0``. Every other value is true, also the empty text.
    Source: ``Convert_Slice_string_To_bool`` in ``k8s.io/apimachinery/pkg/runtime/conversion.go``.
    """
    return value is not None and value != "0" and value.lower() != "false"


class Response(msgspec.Struct, frozen=True, gc=False):
    """One complete answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


def text_response(status: int, line: str) -> Response:
    """An answer of one line of plain text."""
    return Response(status, f"{line}\n".encode(), TEXT)
