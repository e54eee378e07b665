"""Settings of all Ingresses of a controller, as the ConfigMap of ingress-nginx names them.

A key that is not honoured is reported by name. Source: ingress-nginx documentation, "ConfigMap".
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any, Literal

import msgspec

from podwire.gateway.ingress.annotations import (
    read_boolean,
    read_error_statuses,
    read_integer,
    read_redirect_code,
    read_seconds,
    read_size,
)


class IngressDefaults(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Defaults of Ingresses, and how far headers of clients are believed; durations in seconds, sizes in bytes."""

    ssl_redirect: bool = True
    force_ssl_redirect: bool = False
    redirect_code: int = 308
    body_size: int = 1 << 20
    connect_timeout: float = 5
    read_timeout: float = 60
    next_upstream: str = "error timeout"
    tries: int = 3
    hsts: bool = True
    hsts_max_age: int = 31536000
    hsts_include_subdomains: bool = True
    hsts_preload: bool = False
    use_forwarded_headers: bool = False
    compute_full_forwarded_for: bool = False
    use_proxy_protocol: bool = False
    trusted_networks: tuple[str, ...] = ("0.0.0.0/0", "::/0")
    default_certificate: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rate_status: int = 503
    error_statuses: tuple[int, ...] = ()
    snippets: bool = False
    risk_level: str = "High"
    keep_alive: float | None = None
    header_timeout: float | None = None
    header_kb: int | None = None
    http2: bool = True
    streams: int | None = None
    tls_minimum: Literal["TLSv1_2", "TLSv1_3"] = "TLSv1_2"
    real_ip: bool = False
    forwarded_for_header: str = "X-Forwarded-For"
    cross_namespace: bool = False
    answer_headers: frozenset[str] = frozenset()
    gzip: bool = False
    gzip_level: int = 1
    gzip_minimum: int = 256
    gzip_types: tuple[str, ...] = (
        "application/atom+xml", "application/javascript", "application/x-javascript", "application/json",
        "application/rss+xml", "application/vnd.ms-fontobject", "application/x-font-ttf",
        "application/x-web-app-manifest+json", "application/xhtml+xml", "application/xml", "font/opentype",
        "image/svg+xml", "image/x-icon", "text/css", "text/javascript", "text/plain", "text/x-component",
    )  # fmt: skip


class SettingProblem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A key that is not honoured, and why."""

    key: str
    text: str


def read_defaults(data: Mapping[str, str]) -> tuple[IngressDefaults, tuple[SettingProblem, ...]]:
    """The defaults in a ConfigMap; a key that cannot be applied keeps its default and is a problem."""
    values: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    for key, text in sorted(data.items()):
        field = KEYS.get(key)
        if field is None:
            problems.append(SettingProblem(key=key, text="is not supported"))
            continue
        try:
            values[field[0]] = field[1](text.strip())
        except ValueError as problem:
            problems.append(SettingProblem(key=key, text=f"{text!r}: {problem}"))
    return IngressDefaults(**values), tuple(problems)


def _networks(text: str) -> tuple[str, ...]:
    return tuple(str(ip_network(entry.strip(), strict=False)) for entry in text.split(",") if entry.strip())


def _status(text: str) -> int:
    code = read_integer(text)
    if not 400 <= code <= 599:
        raise ValueError("expected a status from 400 to 599")
    return code


def _header_kb(text: str) -> int:
    """KiB of all buffers of a setting such as ``4 8k``."""
    number, _, size = text.partition(" ")
    total = read_integer(number) * read_size(size.strip()) >> 10
    if not 1 <= total <= 8192:
        raise ValueError("expected buffers of 1 KiB to 8 MiB together, such as 4 8k")
    return total


def _streams(text: str) -> int:
    if not 1 <= read_integer(text) <= 2**31 - 1:
        raise ValueError("expected a number from 1")
    return read_integer(text)


def _protocols(text: str) -> str:
    names = set(text.split())
    if not names or not names <= {"TLSv1.2", "TLSv1.3"}:
        raise ValueError("expected TLSv1.2, TLSv1.3 or both")
    return "TLSv1_2" if "TLSv1.2" in names else "TLSv1_3"


def _header_name(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z-]+", text):
        raise ValueError("expected the name of a header")
    return text


def _header_names(text: str) -> frozenset[str]:
    return frozenset(_header_name(name.strip()).lower() for name in text.split(",") if name.strip())


def _level(text: str) -> int:
    if not 1 <= read_integer(text) <= 9:
        raise ValueError("expected 1 to 9")
    return read_integer(text)


def _types(text: str) -> tuple[str, ...]:
    types = tuple(text.split())
    if not types or not all(re.fullmatch(r"[0-9A-Za-z.+-]+/[0-9A-Za-z.+-]+", name) for name in types):
        raise ValueError("expected types of content with spaces between them")
    return types


def _own_namespace(text: str) -> bool:
    if read_boolean(text):
        raise ValueError("expected false: Secrets and ConfigMaps are those of the Ingress's own namespace")
    return False


def _never(text: str) -> bool:
    if read_boolean(text):
        raise ValueError("expected false: configuration of nginx is never taken from annotations")
    return False


def _risk_level(text: str) -> str:
    if text != "High":
        raise ValueError("expected High: all annotations but snippets are served")
    return text


KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "ssl-redirect": ("ssl_redirect", read_boolean),
    "force-ssl-redirect": ("force_ssl_redirect", read_boolean),
    "http-redirect-code": ("redirect_code", read_redirect_code),
    "proxy-body-size": ("body_size", read_size),
    "proxy-connect-timeout": ("connect_timeout", read_seconds),
    "proxy-read-timeout": ("read_timeout", read_seconds),
    "proxy-next-upstream": ("next_upstream", str),
    "proxy-next-upstream-tries": ("tries", read_integer),
    "hsts": ("hsts", read_boolean),
    "hsts-max-age": ("hsts_max_age", read_integer),
    "hsts-include-subdomains": ("hsts_include_subdomains", read_boolean),
    "hsts-preload": ("hsts_preload", read_boolean),
    "use-forwarded-headers": ("use_forwarded_headers", read_boolean),
    "compute-full-forwarded-for": ("compute_full_forwarded_for", read_boolean),
    "use-proxy-protocol": ("use_proxy_protocol", read_boolean),
    "proxy-real-ip-cidr": ("trusted_networks", _networks),
    "default-ssl-certificate": ("default_certificate", str),
    "whitelist-source-range": ("allow", _networks),
    "denylist-source-range": ("deny", _networks),
    "limit-req-status-code": ("rate_status", _status),
    "custom-http-errors": ("error_statuses", read_error_statuses),
    "keep-alive": ("keep_alive", read_seconds),
    "client-header-timeout": ("header_timeout", read_seconds),
    "large-client-header-buffers": ("header_kb", _header_kb),
    "use-http2": ("http2", read_boolean),
    "http2-max-concurrent-streams": ("streams", _streams),
    "ssl-protocols": ("tls_minimum", _protocols),
    "proxy-send-timeout": ("read_timeout", read_seconds),
    "enable-real-ip": ("real_ip", read_boolean),
    "forwarded-for-header": ("forwarded_for_header", _header_name),
    "allow-cross-namespace-resources": ("cross_namespace", _own_namespace),
    "global-allowed-response-headers": ("answer_headers", _header_names),
    "use-gzip": ("gzip", read_boolean),
    "gzip-level": ("gzip_level", _level),
    "gzip-min-length": ("gzip_minimum", read_integer),
    "gzip-types": ("gzip_types", _types),
    "allow-snippet-annotations": ("snippets", _never),
    "annotations-risk-level": ("risk_level", _risk_level),
}
"""Key: the field and its reader, which raises ValueError."""
