"""Parses the requests of one connection: httptools callbacks in, complete requests or refusals out.

The parser checks the limits on header and body size while bytes arrive. It does not use sockets and makes no answers.
Source: RFC 9112.
"""

from typing import Any, Protocol

import httptools

from podwire.http.message import Limits, Request
from podwire.runtime.clock import Clock


class RequestReceiver(Protocol):
    """The connection whose requests are parsed."""

    def receive_request(self, request: Request, *, keep_alive: bool, upgrade: bool) -> None:
        """Takes a complete request; ``upgrade``: the client asks for another protocol."""
        ...

    def refuse(self, status: int, message: str) -> None:
        """Answers with an error and closes; no further request follows."""
        ...

    def send(self, data: bytes) -> None:
        """Writes to the client."""
        ...


class RequestParser:
    """The state of the request that is arriving."""

    def __init__(self, receiver: RequestReceiver, limits: Limits, clock: Clock) -> None:
        self._receiver = receiver
        self._limits = limits
        self._clock = clock
        self._parser: Any = httptools.HttpRequestParser(self)
        self._refused = False
        self._began_at = 0.0
        self._reset()

    def feed(self, data: bytes) -> bytes | None:
        """Parses received bytes; returns the bytes behind a request for another protocol, None without one."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return data[upgrade.args[0] :]
        except httptools.HttpParserError as failure:
            self._refuse(400, f"malformed request: {failure}")
        return None

    @property
    def arriving(self) -> bool:
        """Whether a request has begun and is not complete."""
        return self._arriving

    def is_late(self, now_s: float) -> bool:
        """Whether the arriving request, or its header, takes longer than its limit."""
        limits = self._limits
        limit_s = limits.arrival_s if self._has_headers else min(limits.header_s, limits.arrival_s)
        return self._arriving and now_s - self._began_at > limit_s

    def _reset(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._repeated: dict[str, list[str]] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._arriving = False
        self._has_headers = False

    def on_message_begin(self) -> None:
        """A request starts."""
        self._reset()
        self._arriving = True
        self._began_at = self._clock.monotonic()

    def on_url(self, url: bytes) -> None:
        """A fragment of the target."""
        self._target += url
        self._header_bytes += len(url)
        self._check_header_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._header_bytes += len(name) + len(value)
        self._check_header_size()
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key in self._headers:
            self._repeated.setdefault(key, [self._headers[key]]).append(text)
        self._headers[key] = text

    def _check_header_size(self) -> None:
        if self._header_bytes > self._limits.header_bytes:
            self._refuse(431, "request header too large")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._has_headers = True
        length = self._headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limits.body_bytes:
            self._refuse(413, f"limit is {self._limits.body_bytes}")
        if self._headers.get("expect", "").lower() == "100-continue" and not self._refused:
            self._receiver.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A fragment of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse(413, f"limit is {self._limits.body_bytes}")
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._refused:
            return
        self._arriving = False
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method: str = self._parser.get_method().decode("latin-1")
        request = Request(method, self._target.decode("latin-1"), self._headers, body)
        request.repeated = self._repeated
        keep_alive, upgrade = bool(self._parser.should_keep_alive()), bool(self._parser.should_upgrade())
        self._receiver.receive_request(request, keep_alive=keep_alive, upgrade=upgrade)

    def _refuse(self, status: int, message: str) -> None:
        if not self._refused:
            self._refused = True
            self._receiver.refuse(status, message)
