"""Requests to the API server as values, and their HTTP form with the client's credentials."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from podwire.errors import ApiUnreachable
from podwire.http.client import encode_request
from podwire.kube.config import ApiConfig
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
        self._clock = clock
        self._user_agent = user_agent
        self._token = ""
        self._token_read_at = 0.0

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

    def _bearer_token(self) -> str:
        file = self._config.token_file
        if file is None:
            return self._config.token
        now = self._clock.monotonic()
        if not self._token or now - self._token_read_at > _TOKEN_LIFE_S:
            try:
                self._token = file.read_text().strip()
            except OSError as failure:
                raise ApiUnreachable(f"token file {file}: {failure}") from failure
            self._token_read_at = now
        return self._token
