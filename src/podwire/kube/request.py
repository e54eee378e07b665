"""Requests to the API server as values, and their HTTP form with the client's credentials."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from podwire.errors import ApiUnreachable
from podwire.http.client import encode_request
from podwire.kube import execplugin
from podwire.kube.config import ApiConfig
from podwire.kube.execplugin import ExecCredentials
from podwire.runtime.clock import Clock

_TOKEN_LIFE_S = 60.0
"""A token file is read again after this time, since bound tokens rotate."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A whole HTTP answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """An HTTP request to the API server; ``path`` is absolute, ``query`` not yet encoded."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the request changes nothing, so that sending it twice does no harm."""
        return self.method in ("GET", "HEAD")


class RequestEncoder:
    """Encodes requests to one API server; ``user_agent`` is the value of that header."""

    def __init__(self, config: ApiConfig, clock: Clock, user_agent: str) -> None:
        self._config = config
        self.clock = clock
        self._user_agent = user_agent
        self._token = ""
        self._token_read_at = 0.0
        self.credentials: ExecCredentials | None = None
        """What the credential program printed last; None without such a program, and before its first run."""

    def encode(self, request: ApiRequest) -> bytes:
        """The bytes to send.

        Raises: ApiUnreachable when the token file cannot be read.
        """
        url = self._config.url
        path = url.path.rstrip("/") + request.path
        target = f"{path}?{urlencode(request.query, quote_via=quote)}" if request.query else path
        headers = {"host": url.netloc, "user-agent": self._user_agent, "accept": "application/json"}
        headers |= request.headers or {}
        if token := self._bearer_token():
            headers["authorization"] = f"Bearer {token}"
        return encode_request(request.method, target, headers.items(), request.body)

    @property
    def needs_program(self) -> bool:
        """Whether the credential program must run before the next request."""
        if self._config.exec_plugin is None:
            return False
        return self.credentials is None or not self.credentials.is_current(self.clock.now())

    def run_program(self) -> None:
        """Runs the credential program; blocks.

        Raises: ApiUnreachable.
        """
        if self._config.exec_plugin is not None:
            self.credentials = execplugin.run(self._config.exec_plugin, os.environ)

    def forget(self) -> bool:
        """Drops credentials that the API server has refused; returns whether others may be had."""
        if self._config.exec_plugin is not None:
            self.credentials = None
            return True
        old, self._token = self._token, ""
        return self._config.token_file is not None and self._bearer_token() != old

    def _bearer_token(self) -> str:
        if self.credentials is not None and self.credentials.token:
            return self.credentials.token
        file = self._config.token_file
        if file is None:
            return self._config.token
        now = self.clock.monotonic()
        if not self._token or now - self._token_read_at > _TOKEN_LIFE_S:
            try:
                self._token = file.read_text().strip()
            except OSError as failure:
                raise ApiUnreachable(f"token file {file}: {failure}") from failure
            self._token_read_at = now
        return self._token
