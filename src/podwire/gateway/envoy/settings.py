"""How engines treat clients: limits of connections and headers, and which headers of clients are believed."""

from typing import Literal

import msgspec

REPEAT_HEADER = "x-envoy-retry-on"
"""The header with which a request says when it may be repeated; the engine itself sets it, and it goes no further."""


class GzipSettings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Which answers are compressed: those of types, from a size in bytes on; ``level`` is 1 (fast) to 9."""

    level: int = 1
    minimum: int = 256
    types: tuple[str, ...] = ()


class EngineSettings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Limits and trust; durations in seconds, sizes in bytes.

    ``trusted_networks`` are the proxies in front whose ``X-Forwarded-*`` headers count; without one, the headers of
    clients are replaced. Where they do not ``believes_headers``, only the client's address is taken from theirs, from
    ``forwarded_for_header``. With ``proxy_protocol`` every connection must begin with a PROXY protocol header.
    """

    listen_address: str = "::"
    header_timeout: float = 10
    idle_timeout: float = 75
    stream_idle_timeout: float = 300
    request_timeout: float = 0
    connection_buffer_bytes: int = 65536
    max_header_kb: int = 60
    max_connections: int = 50_000
    max_streams: int = 128
    trusted_networks: tuple[str, ...] = ()
    append_forwarded_for: bool = False
    proxy_protocol: bool = False
    http2: bool = True
    believes_headers: bool = True
    forwarded_for_header: str = "X-Forwarded-For"
    gzip: GzipSettings | None = None
    tls_minimum: Literal["TLSv1_2", "TLSv1_3"] = "TLSv1_2"
    access_log: str = "/dev/stdout"
    """The file of the access log; empty for none."""
