"""Connections from the API server to Services, for webhooks and extension API servers.

The API server of a local cluster has no route to pods and Services. A connection to a Service goes to a ready endpoint
of the Service. When the endpoint is a pod, the connection goes through the kubelet of its node. The TLS session is with
the endpoint itself, inside that connection.
"""

import asyncio
import base64
import functools
import random
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from podwire.embedded.apiserver.proxytarget import service_target
from podwire.embedded.apiserver.store import Store
from podwire.embedded.apiserver.tunnel import Tunnel
from podwire.errors import ApiError, Disconnected
from podwire.http.client import ClientConnection, connect

Object = dict[str, Any]

_SERVICE = "kubernetes.io/service-name"


class ServiceAddress(msgspec.Struct, frozen=True):
    """A port of a Service."""

    namespace: str
    name: str
    port: int

    @property
    def host(self) -> str:
        """The name in the certificate that the Service must show."""
        return f"{self.name}.{self.namespace}.svc"


class ServiceDialer:
    """Opens connections."""

    def __init__(self, store: Store, tunnel: Tunnel) -> None:
        self._store = store
        self._tunnel = tunnel

    async def connect(self, service: ServiceAddress, tls: ssl.SSLContext) -> ClientConnection:
        """A connection to a ready endpoint, whose certificate is checked for the Service's name.

        Raises: OSError, Disconnected; ApiError when the Service, its port or an endpoint is missing.
        """
        entry = self._store.get("/services", service.namespace, service.name)
        if entry is None:
            raise ApiError(404, "NotFound", f'service "{service.name}" not found')
        spec: Object = entry.object().get("spec") or {}
        if spec.get("type") == "ExternalName":
            return await connect(str(spec.get("externalName")), service.port, tls, service.host)
        direct = list(self._foreign(service, spec))
        if direct:
            address, port = random.choice(direct)
            return await connect(address, port, tls, service.host)
        target = service_target(self._store, (service.namespace, service.name), str(service.port))
        plain = await self._tunnel.connect_pod(target)
        try:
            return await start_tls(plain, tls, service.host)
        except BaseException:
            plain.abort()
            raise

    def _foreign(self, service: ServiceAddress, spec: Object) -> Iterator[tuple[str, int]]:
        """The endpoints that are no pods, which this machine reaches itself."""
        names = [port.get("name") or "" for port in spec.get("ports") or () if port["port"] == service.port]
        for entry in self._store.entries("discovery.k8s.io/endpointslices", service.namespace):
            if not names or entry.labels.get(_SERVICE) != service.name:
                continue
            endpoint_slice = entry.object()
            slice_ports = endpoint_slice.get("ports") or ()
            ports = [port.get("port") for port in slice_ports if (port.get("name") or "") == names[0]]
            for endpoint in endpoint_slice.get("endpoints") or ():
                ready = (endpoint.get("conditions") or {}).get("ready") is not False
                if ready and ports and ports[0] and (endpoint.get("targetRef") or {}).get("kind") != "Pod":
                    yield str(endpoint["addresses"][0]), int(ports[0])


async def start_tls(plain: ClientConnection, tls: ssl.SSLContext, name: str) -> ClientConnection:
    """TLS inside an open connection.

    Raises: OSError when the certificate is not accepted, Disconnected.
    """
    transport, _ = plain.detach()
    if sys.version_info < (3, 12):
        # Python 3.11 closes TLS inside TLS with a call that fails, which would hide the reason of the first failure.
        transport._force_close = lambda _: transport.abort()  # type: ignore[attr-defined]
    inner = ClientConnection()
    loop = asyncio.get_running_loop()
    try:
        secured = await loop.start_tls(transport, inner, tls, server_hostname=name)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise Disconnected("the connection broke before TLS began")
    inner.connection_made(secured)
    return inner


@functools.lru_cache(maxsize=64)
def trusting(ca_bundle: str) -> ssl.SSLContext:
    """TLS settings that accept certificates of the authorities in a bundle; shared, not to be changed.

    Raises: ssl.SSLError when the bundle has no certificate.
    """
    return make_context(ca_bundle)


def make_context(ca_bundle: str) -> ssl.SSLContext:
    """New TLS settings that accept certificates of these authorities (PEM in base64), the machine's for the empty text.

    Raises: ssl.SSLError when the bundle has no certificate.
    """
    data = base64.b64decode(ca_bundle).decode("ascii", "replace") if ca_bundle else None
    context = ssl.create_default_context(cadata=data)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
