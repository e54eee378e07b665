"""Parses the pod, port and path of a request to ``/proxy`` of a pod or a Service.

Names are ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT`` with an optional port; the scheme is ``http`` or ``https``.
Without a port, a pod is reached at its first container port. The port of a Service is a number or a name; the request
goes to a ready endpoint that is a pod. Sources: ``ResourceLocation`` in ``pkg/registry/core/pod/strategy.go`` and
``pkg/registry/core/service/storage/storage.go``.
"""

import random
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.store import Store
from podwire.errors import ApiError

Object = dict[str, Any]

_SERVICE = "kubernetes.io/service-name"
_PODS = KINDS["", "v1", "pods"]
_SERVICES = KINDS["", "v1", "services"]
_PORTS = {"http": 80, "https": 443}


class ProxyTarget(msgspec.Struct, frozen=True):
    """A port of a pod."""

    node: str
    namespace: str
    pod: str
    address: str
    port: int
    tls: bool = False

    @property
    def host(self) -> str:
        """Address and port as a URL has them."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def proxy_path(call: Call) -> tuple[str, str]:
    """The path up to ``/proxy``, and the one behind it as it was sent; the second is empty without a slash."""
    count = 7 if call.namespace else 5
    segments = call.request.raw_path.split("/")
    return "/".join(segments[: count + 1]), "".join(f"/{segment}" for segment in segments[count + 1 :])


def split_name(text: str) -> tuple[str, str, str] | None:
    """Scheme, name and port of ``[SCHEME:]NAME[:PORT]``; None when the text has another form."""
    fields = text.split(":")
    if len(fields) == 3 and fields[0] not in _PORTS:
        return None
    scheme, name, port = ["http", *fields] if len(fields) == 2 else fields if len(fields) == 3 else ["http", text, ""]
    return (scheme, name, port) if name and len(fields) <= 3 else None


def proxy_target(store: Store, call: Call) -> ProxyTarget:
    """The port that the request is for.

    Raises: ApiError 400 for a name of another form, NotFound, ApiError 503 for a Service that has no endpoint.
    """
    address = split_name(call.name)
    if address is None:
        raise failures.bad_request(f'invalid {call.kind.singular_name} request "{call.name}"')
    scheme, name, port = address
    if call.kind.table == "/services":
        return service_target(store, (call.namespace, name), port, scheme)
    pod = _pod(store, call.namespace, name)
    if not port:
        containers = (pod.get("spec") or {}).get("containers") or ()
        declared = [item["containerPort"] for container in containers for item in container.get("ports") or ()]
        port = str(declared[0] if declared else _PORTS[scheme])
    return _target(pod, (pod.get("status") or {}).get("podIP") or "", port, scheme)


def _pod(store: Store, namespace: str, name: str) -> Object:
    entry = store.get("/pods", namespace, name)
    if entry is None:
        raise failures.not_found(_PODS, name)
    return entry.object()


def _target(pod: Object, address: str, port: str, scheme: str) -> ProxyTarget:
    meta, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName") or ""
    if not node or not _is_allowed(address):
        raise failures.bad_request("address not allowed")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise _unavailable(f'error trying to reach service: "{port}" is not a port number')
    return ProxyTarget(node, meta["namespace"], meta["name"], address, int(port), scheme == "https")


def _is_allowed(text: str) -> bool:
    """Whether the address is one of a pod, not of this machine or of a network segment."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def service_target(store: Store, key: tuple[str, str], port: str, scheme: str = "http") -> ProxyTarget:
    """A ready endpoint of a port, by number or name, of the Service with that namespace and name.

    Raises: NotFound, ApiError 503 when the Service has no such port or no endpoint.
    """
    namespace, name = key
    entry = store.get("/services", namespace, name)
    if entry is None:
        raise failures.not_found(_SERVICES, name)
    if port.isdecimal():
        ports = (entry.object().get("spec") or {}).get("ports") or ()
        names = [item.get("name") or "" for item in ports if item["port"] == int(port)]
        if not names:
            raise _unavailable(f'no service port {port} found for service "{name}"')
        port = names[0]
    endpoints = list(_endpoints(store, namespace, name, port))
    if not endpoints:
        raise _unavailable(f'no endpoints available for service "{name}"')
    pod, address, number = random.choice(endpoints)
    return _target(_pod(store, namespace, pod), address, str(number), scheme)


def _endpoints(store: Store, namespace: str, service: str, port: str) -> Iterator[tuple[str, str, int]]:
    """Pod, address and port of the ready endpoints of a Service's port."""
    for entry in store.entries("discovery.k8s.io/endpointslices", namespace):
        if (entry.object()["metadata"].get("labels") or {}).get(_SERVICE) != service:
            continue
        ports = [item.get("port") for item in entry.object().get("ports") or () if (item.get("name") or "") == port]
        for endpoint in entry.object().get("endpoints") or ():
            ready = (endpoint.get("conditions") or {}).get("ready") is not False
            pod = endpoint.get("targetRef") or {}
            if ready and pod.get("kind") == "Pod" and ports and ports[0]:
                yield str(pod.get("name")), str(endpoint["addresses"][0]), int(ports[0])


def _unavailable(problem: str) -> ApiError:
    return ApiError(503, "ServiceUnavailable", problem)
