"""Backends that annotations name by URL: a server that decides about requests, or one that gets copies of them.

The name of a Service (``name.namespace.svc``) leads to its endpoints, an address to itself, any other name to what DNS
says.
"""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from podwire.gateway.backends import UpstreamFacts, resolve
from podwire.gateway.routes import EntryBackend, EntryEndpoint

_SERVICE = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.[a-z0-9.-]+)?")
_PORTS = {"http": 80, "https": 443}


class UrlTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The backend of a URL, its Host header and its path with the query; or why there is none."""

    backend: EntryBackend | None = None
    host: str = ""
    path: str = "/"
    problem: str = ""


def target_of(url: str, upstreams: UpstreamFacts, variant: str) -> UrlTarget:
    """What a URL of http or https names; ``variant`` stands in the key of the backend."""
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or _PORTS[parts.scheme]
    service = _SERVICE.fullmatch(host)
    if service is None:
        key = f"{parts.scheme}//{host}:{port}#{variant}"
        endpoints = (EntryEndpoint(address=host, port=port),)
        backend = EntryBackend(key=key, endpoints=endpoints, tls=is_tls, fixed=True, dns=not _is_address(host))
    else:
        resolved = resolve(upstreams, service[2], service[1], port)
        if resolved.backend is None:
            return UrlTarget(problem=resolved.problem)
        key = f"{resolved.backend.key}#{variant}{',tls' if is_tls else ''}"
        backend = msgspec.structs.replace(resolved.backend, key=key, tls=is_tls)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return UrlTarget(backend=backend, host=parts.netloc.rpartition("@")[2], path=path)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
