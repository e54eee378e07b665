"""Requests that another server allows or refuses (``auth-url``), and where that server is.

The name of a Service (``name.namespace.svc``) leads to its endpoints, an address to itself, any other name to what DNS
says. Source: ingress-nginx documentation, "External Authentication".
"""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from podwire.gateway.backends import UpstreamFacts, resolve
from podwire.gateway.ingress.annotations import IngressSettings
from podwire.gateway.routes import EntryBackend, EntryEndpoint, ExternalAuth

VARIANT = "#auth"
_SERVICE = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.[a-z0-9.-]+)?")
_PORTS = {"http": 80, "https": 443}


class Authority(msgspec.Struct, frozen=True):
    """The server that decides, its backend, or why there is none."""

    auth: ExternalAuth | None = None
    backend: EntryBackend | None = None
    problem: str = ""


def authority_of(settings: IngressSettings, upstreams: UpstreamFacts) -> Authority:
    """The server of ``auth-url``."""
    parts = urlsplit(settings.auth_url)
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    is_tls = parts.scheme == "https"
    service = _SERVICE.fullmatch(host)
    if service is not None:
        resolved = resolve(upstreams, service[2], service[1], port)
        if resolved.backend is None:
            return Authority(problem=resolved.problem)
        suffix = f"{VARIANT},tls" if is_tls else VARIANT
        backend = msgspec.structs.replace(resolved.backend, key=resolved.backend.key + suffix, tls=is_tls)
    else:
        key = f"{parts.scheme}//{host}:{port}{VARIANT}"
        address = _is_address(host)
        endpoints = (EntryEndpoint(address=host, port=port),)
        backend = EntryBackend(key=key, endpoints=endpoints, tls=is_tls, fixed=True, dns=not address)
    auth = ExternalAuth(
        backend=backend.key,
        host=parts.netloc.rpartition("@")[2],
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        method=settings.auth_method,
        response_headers=tuple(name.lower() for name in settings.auth_response_headers),
        signin=settings.auth_signin,
        redirect_parameter=settings.auth_signin_redirect_param,
    )
    return Authority(auth=auth, backend=backend)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
