"""What happens to a request of an Ingress: forwarded, redirected or refused, and what it must pass before."""

import re

import msgspec

from podwire.gateway.ingress.annotations import IngressSettings
from podwire.gateway.ingress.cors import listed_origins
from podwire.gateway.ingress.paths import path_pattern
from podwire.gateway.ingress.settings import IngressDefaults
from podwire.gateway.patterns import groups_of
from podwire.gateway.routes import (
    BasicAuth,
    Cookie,
    EntryBackend,
    EntryEndpoint,
    EntryRoute,
    ExternalAuth,
    Forward,
    HeaderChanges,
    HttpRedirect,
    PathMatch,
    PathRewrite,
    RequestRate,
    Retry,
    RouteLimits,
    Session,
    WeightedBackend,
)
from podwire.model.service import Service

_ANSWER_HEADERS_KB = 60
"""The engine's own limit for the headers of answers."""
_RETRIED_CODES = {"http_500": 500, "http_502": 502, "http_503": 503, "http_504": 504, "http_403": 403, "http_429": 429}

_USER = re.compile(r"[^:\s]+:\{SHA\}[A-Za-z0-9+/]{27}=")
"""A user of htpasswd and the hash of the password, as base64 of 20 bytes."""
_MOST = 2**32 - 1
"""The largest number in the engine's configuration."""


def forward(
    backends: tuple[WeightedBackend, ...], path: str, settings: IngressSettings, defaults: IngressDefaults
) -> Forward:
    """Forwards to backends by weight."""
    persistent = settings.affinity == "cookie" and settings.affinity_mode == "persistent"
    return Forward(
        backends=backends,
        host=settings.upstream_host,
        path=_rewrite(path, settings),
        timeout=settings.read_timeout if settings.read_timeout is not None else defaults.read_timeout,
        retry=_retry(settings, defaults),
        cookie=None if persistent else _cookie(path, settings),
        session=_session(settings) if persistent else None,
        hash_on=settings.hash_by,
        keeps_share=settings.affinity == "cookie" and settings.affinity_canary_behavior == "sticky" and not persistent,
    )


def redirect(settings: IngressSettings) -> HttpRedirect | None:
    """The redirect that annotations ask for in place of the backend."""
    if settings.temporal_redirect:
        return HttpRedirect(status=settings.temporal_redirect_code, location=settings.temporal_redirect)
    if settings.permanent_redirect:
        return HttpRedirect(status=settings.permanent_redirect_code, location=settings.permanent_redirect)
    return None


def redirect_to_tls(settings: IngressSettings, defaults: IngressDefaults) -> HttpRedirect:
    """The redirect of a plain request to the same URL over TLS; a slash at the end goes, as with ingress-nginx."""
    stripped = None if settings.preserve_trailing_slash else PathRewrite(kind="regex", pattern="/+$", replacement="")
    return HttpRedirect(status=defaults.redirect_code, scheme="https", path=stripped)


def app_root(settings: IngressSettings) -> HttpRedirect:
    """The redirect of the path ``/``."""
    return HttpRedirect(status=302, path=PathRewrite(kind="full", replacement=settings.app_root))


def limits(
    settings: IngressSettings, defaults: IngressDefaults, users: str | None, auth: ExternalAuth | None
) -> RouteLimits:
    """What a request must pass; ``users`` are those of the Secret for basic authentication."""
    return RouteLimits(
        allow=settings.allow or defaults.allow,
        deny=settings.deny or defaults.deny,
        cors=listed_origins(settings),
        basic_auth=BasicAuth(users=users, realm=settings.auth_realm) if settings.auth_type == "basic" else None,
        external_auth=auth,
        body_bytes=settings.body_size if settings.body_size is not None else defaults.body_size,
        body_streams=not settings.holds_requests,
        rate=_rate(settings, defaults.rate_status),
    )


def request_headers(settings: IngressSettings) -> HeaderChanges:
    """Headers that are added for the backend."""
    prefix = settings.forwarded_prefix
    return HeaderChanges(set=(("X-Forwarded-Prefix", prefix),)) if prefix else HeaderChanges()


def path_match(path: str, path_type: str, *, regex: bool) -> PathMatch:
    """The match of a path; on a host with regular expressions all paths are such, open at their end."""
    if regex:
        return PathMatch(kind="regex", path=path_pattern(path), ignore_case=True)
    return PathMatch(kind="exact" if path_type == "Exact" else "prefix", path=path)


def users_of(secret: dict[str, bytes], kind: str) -> str | None:
    """The users of a Secret as htpasswd lines: one file, or one hash a user.

    None when the Secret has none, one twice, or one whose hash is not SHA-1 (``{SHA}``), the only kind that the engine
    checks.
    """
    if kind == "auth-file":
        lines = secret.get("auth", b"").decode(errors="replace").split()
    else:
        lines = [f"{user}:{value.decode(errors='replace').strip()}" for user, value in sorted(secret.items())]
    names = {line.partition(":")[0] for line in lines}
    if not lines or len(names) < len(lines) or not all(_USER.fullmatch(line) for line in lines):
        return None
    return "\n".join(lines)


def _rewrite(path: str, settings: IngressSettings) -> PathRewrite | None:
    if not settings.rewrite_target:
        return None
    pattern = f"(?i)^{path_pattern(path)}$"
    captured = groups_of(pattern)

    def group(match: re.Match[str]) -> str:
        return f"\\{match[1]}" if int(match[1]) <= captured else ""

    target = settings.rewrite_target.replace("\\", r"\\")
    return PathRewrite(kind="regex", pattern=pattern, replacement=re.sub(r"\$(\d)", group, target))


def _retry(settings: IngressSettings, defaults: IngressDefaults) -> Retry | None:
    conditions = (settings.next_upstream or defaults.next_upstream).split()
    tries = settings.next_upstream_tries if settings.next_upstream_tries is not None else defaults.tries
    if "off" in conditions or tries == 1:
        return None
    return Retry(
        attempts=max(tries - 1, 1),
        on_codes=tuple(_RETRIED_CODES[word] for word in conditions if word in _RETRIED_CODES),
        on_connection_error="error" in conditions,
    )


def _cookie(path: str, settings: IngressSettings) -> Cookie | None:
    if settings.affinity != "cookie":
        return None
    lifetime = settings.cookie_max_age if settings.cookie_max_age is not None else settings.cookie_expires
    attributes = [
        ("Domain", settings.cookie_domain),
        ("SameSite", settings.cookie_samesite),
    ]
    named = tuple((name, value) for name, value in attributes if value)
    if settings.cookie_secure:
        named += (("Secure", ""),)
    return Cookie(
        name=settings.cookie_name,
        path=settings.cookie_path or path,
        ttl=float(lifetime) if lifetime is not None else None,
        attributes=named,
    )


def _session(settings: IngressSettings) -> Session:
    """The cookie that names the endpoint itself; a client stays there when endpoints are added."""
    lifetime = settings.cookie_max_age if settings.cookie_max_age is not None else settings.cookie_expires
    return Session(kind="cookie", name=settings.cookie_name, ttl=float(lifetime) if lifetime is not None else None)


def _rate(settings: IngressSettings, status: int) -> RequestRate | None:
    requests, interval = (settings.limit_rps, 1) if settings.limit_rps else (settings.limit_rpm, 60)
    if not requests:
        return None
    burst = min(requests * max(settings.limit_burst_multiplier, 1), _MOST)
    exempt = settings.limit_exempt
    return RequestRate(requests=requests, interval=interval, burst=burst, status=status, exempt=exempt)


def with_settings(backend: EntryBackend, settings: IngressSettings, defaults: IngressDefaults) -> EntryBackend:
    """A backend as the annotations of an Ingress want it; where they differ from the usual ones, its key does too."""
    tls = settings.backend_protocol in ("HTTPS", "GRPCS")
    protocol = "h2c" if settings.backend_protocol in ("GRPC", "GRPCS") else backend.protocol
    timeout = settings.connect_timeout if settings.connect_timeout is not None else defaults.connect_timeout
    hashed = settings.affinity == "cookie" and settings.affinity_mode == "balanced"
    balance = "ring_hash" if settings.hash_by or hashed else "round_robin"
    if settings.balance == "ewma" and balance == "round_robin":
        balance = "least_request"
    variant = [] if settings.backend_protocol == "HTTP" else [settings.backend_protocol.lower()]
    variant += [f"connect={timeout:g}s"] if timeout != defaults.connect_timeout else []
    variant += [] if balance == "round_robin" else [balance]
    header_kb = -(-settings.answer_header_bytes // 1024)
    header_kb = header_kb if header_kb > _ANSWER_HEADERS_KB else 0
    variant += [f"headers={header_kb}k"] if header_kb else []
    return msgspec.structs.replace(
        backend,
        key="#".join((backend.key, ",".join(variant))) if variant else backend.key,
        tls=tls,
        protocol=protocol,
        connect_timeout=timeout,
        balance=balance,
        header_kb=header_kb,
    )


def of_service(backend: EntryBackend, service: Service) -> EntryBackend:
    """A backend with the cluster address of its Service as the only endpoint; a headless Service has none."""
    if service.headless or not service.spec.cluster_ip:
        return backend
    port = int(backend.key.partition("#")[0].rpartition(":")[2])
    key = f"{backend.key}{',' if '#' in backend.key else '#'}service"
    endpoint = EntryEndpoint(address=service.spec.cluster_ip, port=port)
    return msgspec.structs.replace(backend, key=key, endpoints=(endpoint,), fixed=True)


def with_strict_transport(routes: tuple[EntryRoute, ...], defaults: IngressDefaults) -> tuple[EntryRoute, ...]:
    """The routes of a host with TLS: browsers are told to use it from now on (RFC 6797)."""
    if not defaults.hsts:
        return routes
    text = f"max-age={defaults.hsts_max_age}"
    text += "; includeSubDomains" if defaults.hsts_include_subdomains else ""
    text += "; preload" if defaults.hsts_preload else ""
    return tuple(
        msgspec.structs.replace(
            route,
            response_headers=msgspec.structs.replace(
                route.response_headers, set=(*route.response_headers.set, ("Strict-Transport-Security", text))
            ),
        )
        for route in routes
    )
