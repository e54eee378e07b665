"""The annotations of Ingresses, as ingress-nginx names them (``nginx.ingress.kubernetes.io/``).

:data:`ANNOTATIONS` has each one that is honoured, with the field of :class:`IngressSettings` and how its text is read.
Every other annotation of this prefix is reported by name: nothing is ignored in silence. Those that carry configuration
of nginx itself (snippets) are refused; an Ingress with one is served without it. An Ingress with one of
:data:`PROTECTING` that cannot be applied is not served at all.

Source: ingress-nginx documentation, "Annotations".
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

import msgspec

from podwire.gateway.patterns import pattern_problem

PREFIX = "nginx.ingress.kubernetes.io/"
PROTECTING = frozenset(
    {
        "whitelist-source-range", "allowlist-source-range", "denylist-source-range", "auth-type", "auth-secret",
        "auth-secret-type", "auth-url", "auth-method", "auth-snippet", "auth-tls-secret", "auth-tls-verify-client",
        "auth-tls-match-cn", "auth-tls-verify-depth", "satisfy", "enable-modsecurity", "enable-global-auth",
    }
)  # fmt: skip
"""Annotations that restrict access. While one of them cannot be applied, the Ingress gives no client access."""


class IngressSettings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the annotations of one Ingress say; durations in seconds, sizes in bytes, 0 for no limit."""

    rewrite_target: str = ""
    use_regex: bool = False
    ssl_redirect: bool | None = None
    force_ssl_redirect: bool = False
    preserve_trailing_slash: bool = False
    app_root: str = ""
    permanent_redirect: str = ""
    permanent_redirect_code: int = 301
    temporal_redirect: str = ""
    temporal_redirect_code: int = 302
    from_to_www_redirect: bool = False
    server_alias: tuple[str, ...] = ()
    canary: bool = False
    canary_by_header: str = ""
    canary_by_header_value: str = ""
    canary_by_header_pattern: str = ""
    canary_by_cookie: str = ""
    canary_weight: int = 0
    canary_weight_total: int = 100
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    auth_type: str = ""
    auth_secret: str = ""
    auth_secret_type: str = "auth-file"
    auth_realm: str = ""
    auth_url: str = ""
    auth_method: str = ""
    auth_signin: str = ""
    auth_signin_redirect_param: str = "rd"
    auth_response_headers: tuple[str, ...] = ()
    auth_tls_secret: str = ""
    auth_tls_verify: str = "on"
    auth_tls_pass: bool = False
    auth_tls_depth: int = 1
    ssl_passthrough: bool = False
    closed: bool = False
    """Whether an annotation that restricts access cannot be applied: no client gets access."""
    limit_rps: int = 0
    limit_rpm: int = 0
    limit_burst_multiplier: int = 5
    limit_exempt: tuple[str, ...] = ()
    body_size: int | None = None
    holds_requests: bool = True
    holds_answers: bool = False
    answer_header_bytes: int = 0
    connect_timeout: float | None = None
    read_timeout: float | None = None
    next_upstream: str = ""
    next_upstream_tries: int | None = None
    backend_protocol: str = "HTTP"
    affinity: str = ""
    affinity_mode: str = "balanced"
    affinity_canary_behavior: str = "sticky"
    cookie_name: str = "INGRESSCOOKIE"
    cookie_path: str = ""
    cookie_domain: str = ""
    cookie_expires: int | None = None
    cookie_max_age: int | None = None
    cookie_samesite: str = ""
    cookie_secure: bool | None = None
    cors: bool = False
    cors_origins: tuple[str, ...] = ("*",)
    cors_methods: tuple[str, ...] = ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
    cors_headers: tuple[str, ...] = (
        "DNT", "Keep-Alive", "User-Agent", "X-Requested-With", "If-Modified-Since", "Cache-Control", "Content-Type",
        "Range", "Authorization",
    )  # fmt: skip
    cors_credentials: bool = True
    cors_max_age: int = 1728000
    cors_expose_headers: tuple[str, ...] = ()
    upstream_host: str = ""
    forwarded_prefix: str = ""
    hash_by: str = ""
    balance: str = ""
    service_upstream: bool = False
    mirror_target: str = ""
    mirror_host: str = ""
    default_backend: str = ""
    error_statuses: tuple[int, ...] = ()
    custom_headers: str = ""
    satisfy: str = "all"
    proxy_ssl_secret: str = ""
    proxy_ssl_verify: bool = False
    proxy_ssl_name: str = ""
    proxy_ssl_server_name: bool = False


class AnnotationProblem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An annotation that is not honoured, and why."""

    name: str
    text: str


def read_annotations(annotations: Mapping[str, str]) -> tuple[IngressSettings, tuple[AnnotationProblem, ...]]:
    """The settings of an Ingress; an annotation that cannot be applied keeps its default and is a problem."""
    values: dict[str, Any] = {}
    problems: list[AnnotationProblem] = []
    for name, text in sorted(annotations.items()):
        if not name.startswith(PREFIX):
            continue
        short = name.removeprefix(PREFIX)
        if short.endswith("-snippet"):
            problems.append(AnnotationProblem(name=name, text="is refused: it is configuration of nginx"))
            continue
        field = ANNOTATIONS.get(short)
        if field is None:
            problems.append(AnnotationProblem(name=name, text="is not supported"))
            continue
        try:
            values[field[0]] = field[1](_printable(text.strip()))
        except ValueError as problem:
            problems.append(AnnotationProblem(name=name, text=f"{text!r}: {problem}"))
    closed = any(problem.name.removeprefix(PREFIX) in PROTECTING for problem in problems)
    return IngressSettings(**values, closed=closed), tuple(problems)


def _printable(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError("expected one line without control characters")
    return text


def read_boolean(text: str) -> bool:
    """True or False.

    Raises: ValueError.
    """
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def read_integer(text: str) -> int:
    """A whole number.

    Raises: ValueError.
    """
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError("expected a whole number from 0 to 999999999")
    return int(text)


def read_seconds(text: str) -> float:
    """Seconds of a duration such as ``60``, ``5s`` or ``1m``.

    Raises: ValueError.
    """
    match = re.fullmatch(r"(\d{1,9})(ms|s|m|h)?", text)
    if match is None:
        raise ValueError("expected a number of seconds, or one with ms, s, m or h")
    return int(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, None: 1}[match[2]]


def read_size(text: str) -> int:
    """Bytes of a size such as ``8k``; from 4 GiB on there is no limit (0), since the engine's numbers end there.

    Raises: ValueError.
    """
    match = re.fullmatch(r"(\d{1,18})([kmg])?", text.lower())
    if match is None:
        raise ValueError("expected a size such as 8k, 1m or 2g")
    size = int(match[1]) << {"k": 10, "m": 20, "g": 30, None: 0}[match[2]]
    return size if size < 1 << 32 else 0


def _entries(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _networks(text: str) -> tuple[str, ...]:
    return tuple(str(ip_network(entry, strict=False)) for entry in _entries(text))


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("expected a path that begins with /")
    return text


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://\S+|/\S*", text):
        raise ValueError("expected a URL of http or https")
    return text


def read_redirect_code(text: str) -> int:
    """The status of a redirect.

    Raises: ValueError.
    """
    code = read_integer(text)
    if code not in (301, 302, 303, 307, 308):
        raise ValueError("expected 301, 302, 303, 307 or 308")
    return code


def read_error_statuses(text: str) -> tuple[int, ...]:
    """Statuses with commas between them.

    Raises: ValueError.
    """
    statuses = tuple(sorted({read_integer(entry) for entry in _entries(text)}))
    if not all(300 <= status <= 599 for status in statuses):
        raise ValueError("expected statuses from 300 to 599")
    return statuses


def _pattern(text: str) -> str:
    if problem := pattern_problem(text):
        raise ValueError(f"expected a regular expression of RE2: {problem}")
    return text


def _token(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise ValueError("expected a name of letters, digits and hyphens")
    return text


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_token(entry) for entry in _entries(text))


def _plain_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s$/?#]+[^\s$]*", text):
        raise ValueError("expected a URL of http or https without variables")
    try:
        urlsplit(text).port  # noqa: B018 - it raises for a port that is none
    except ValueError as problem:
        raise ValueError(f"expected a URL of http or https: {problem}") from problem
    return text


def _mirror(text: str) -> str:
    """The origin of a URL such as ``https://test.example$request_uri``: copies keep their path."""
    url = _plain_url(text.removesuffix("$request_uri"))
    if urlsplit(url).path not in ("", "/") or urlsplit(url).query:
        raise ValueError("expected a URL without a path, optionally followed by $request_uri")
    return url


def _hosts(text: str) -> tuple[str, ...]:
    hosts = _entries(text.lower())
    for host in hosts:
        if not re.fullmatch(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", host):
            raise ValueError(f"expected names of hosts, got {host!r}")
    return hosts


def _choice(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {' or '.join(repr(choice) for choice in choices)}")
        return text

    return read


def _hash_source(text: str) -> str:
    if text in ("$remote_addr", "$binary_remote_addr"):
        return "source"
    if text == "$request_uri":
        return "path"
    header = re.fullmatch(r"\$http_([a-z0-9_]+)", text)
    if header is None:
        raise ValueError("expected $remote_addr, $request_uri or $http_ with the name of a header")
    return "header:" + header[1].replace("_", "-")


def _switch(text: str) -> bool:
    return _choice("on", "off")(text.lower()) == "on"


def _off(text: str) -> bool:
    if _switch(text):
        raise ValueError("expected off: answers are passed on as they come")
    return False


def _object_name(text: str) -> str:
    if not re.fullmatch(r"([a-z0-9-]+/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?", text):
        raise ValueError("expected the name of an object, or namespace/name")
    return text


def _host(text: str) -> str:
    hosts = _hosts(text)
    if len(hosts) != 1 or hosts[0].startswith("*"):
        raise ValueError("expected the name of a host")
    return hosts[0]


def _depth(text: str) -> int:
    depth = read_integer(text)
    if depth > 100:
        raise ValueError("expected 0 to 100")
    return depth


def _answer_headers(text: str) -> int:
    size = read_size(text)
    if not 1 <= size <= 8 << 20:
        raise ValueError("expected a size from 1 byte to 8m")
    return size


def _protocol(text: str) -> str:
    return _choice("HTTP", "HTTPS", "GRPC", "GRPCS")(text.upper())


ANNOTATIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "rewrite-target": ("rewrite_target", str),
    "use-regex": ("use_regex", read_boolean),
    "ssl-redirect": ("ssl_redirect", read_boolean),
    "force-ssl-redirect": ("force_ssl_redirect", read_boolean),
    "preserve-trailing-slash": ("preserve_trailing_slash", read_boolean),
    "app-root": ("app_root", _path),
    "permanent-redirect": ("permanent_redirect", _url),
    "permanent-redirect-code": ("permanent_redirect_code", read_redirect_code),
    "temporal-redirect": ("temporal_redirect", _url),
    "temporal-redirect-code": ("temporal_redirect_code", read_redirect_code),
    "from-to-www-redirect": ("from_to_www_redirect", read_boolean),
    "server-alias": ("server_alias", _hosts),
    "canary": ("canary", read_boolean),
    "canary-by-header": ("canary_by_header", _token),
    "canary-by-header-value": ("canary_by_header_value", str),
    "canary-by-header-pattern": ("canary_by_header_pattern", _pattern),
    "canary-by-cookie": ("canary_by_cookie", _token),
    "canary-weight": ("canary_weight", read_integer),
    "canary-weight-total": ("canary_weight_total", read_integer),
    "whitelist-source-range": ("allow", _networks),
    "allowlist-source-range": ("allow", _networks),
    "denylist-source-range": ("deny", _networks),
    "auth-type": ("auth_type", _choice("basic")),
    "auth-secret": ("auth_secret", str),
    "auth-secret-type": ("auth_secret_type", _choice("auth-file", "auth-map")),
    "auth-realm": ("auth_realm", str),
    "auth-url": ("auth_url", _plain_url),
    "auth-method": ("auth_method", _token),
    "auth-signin": ("auth_signin", _plain_url),
    "auth-signin-redirect-param": ("auth_signin_redirect_param", _token),
    "auth-response-headers": ("auth_response_headers", _tokens),
    "auth-tls-secret": ("auth_tls_secret", str),
    "auth-tls-verify-client": ("auth_tls_verify", _choice("on", "off", "optional_no_ca")),
    "auth-tls-pass-certificate-to-upstream": ("auth_tls_pass", read_boolean),
    "auth-tls-verify-depth": ("auth_tls_depth", _depth),
    "satisfy": ("satisfy", _choice("all")),
    "ssl-passthrough": ("ssl_passthrough", read_boolean),
    "service-upstream": ("service_upstream", read_boolean),
    "mirror-target": ("mirror_target", _mirror),
    "mirror-host": ("mirror_host", _host),
    "default-backend": ("default_backend", _object_name),
    "custom-http-errors": ("error_statuses", read_error_statuses),
    "custom-headers": ("custom_headers", _object_name),
    "proxy-ssl-secret": ("proxy_ssl_secret", _object_name),
    "proxy-ssl-verify": ("proxy_ssl_verify", _switch),
    "proxy-ssl-name": ("proxy_ssl_name", _host),
    "proxy-ssl-server-name": ("proxy_ssl_server_name", _switch),
    "limit-rps": ("limit_rps", read_integer),
    "limit-rpm": ("limit_rpm", read_integer),
    "limit-burst-multiplier": ("limit_burst_multiplier", read_integer),
    "limit-whitelist": ("limit_exempt", _networks),
    "limit-allowlist": ("limit_exempt", _networks),
    "proxy-request-buffering": ("holds_requests", _switch),
    "proxy-buffering": ("holds_answers", _off),
    "proxy-buffer-size": ("answer_header_bytes", _answer_headers),
    "proxy-body-size": ("body_size", read_size),
    "proxy-connect-timeout": ("connect_timeout", read_seconds),
    "proxy-read-timeout": ("read_timeout", read_seconds),
    "proxy-send-timeout": ("read_timeout", read_seconds),
    "proxy-next-upstream": ("next_upstream", str),
    "proxy-next-upstream-tries": ("next_upstream_tries", read_integer),
    "backend-protocol": ("backend_protocol", _protocol),
    "affinity": ("affinity", _choice("cookie", "")),
    "affinity-mode": ("affinity_mode", _choice("balanced", "persistent")),
    "affinity-canary-behavior": ("affinity_canary_behavior", _choice("sticky", "legacy")),
    "session-cookie-name": ("cookie_name", _token),
    "session-cookie-path": ("cookie_path", _path),
    "session-cookie-domain": ("cookie_domain", str),
    "session-cookie-expires": ("cookie_expires", read_integer),
    "session-cookie-max-age": ("cookie_max_age", read_integer),
    "session-cookie-samesite": ("cookie_samesite", _choice("None", "Lax", "Strict")),
    "session-cookie-secure": ("cookie_secure", read_boolean),
    "enable-cors": ("cors", read_boolean),
    "cors-allow-origin": ("cors_origins", _entries),
    "cors-allow-methods": ("cors_methods", _entries),
    "cors-allow-headers": ("cors_headers", _entries),
    "cors-allow-credentials": ("cors_credentials", read_boolean),
    "cors-max-age": ("cors_max_age", read_integer),
    "cors-expose-headers": ("cors_expose_headers", _entries),
    "upstream-vhost": ("upstream_host", str),
    "x-forwarded-prefix": ("forwarded_prefix", _path),
    "upstream-hash-by": ("hash_by", _hash_source),
    "load-balance": ("balance", _choice("round_robin", "ewma")),
}
"""Annotation without its prefix: the field and its reader, which raises ValueError."""
