"""Connects the API server to a port of a pod: ``GET /podConnect/NAMESPACE/POD?address=&port=&tls=`` with an upgrade.

The proxy of the API (``pods/NAME:PORT/proxy``) needs a connection to the pod, and the API server of a local cluster has
no route to pods. The kubelet connects inside the pod's network namespace to one of the pod's own addresses. With
``tls=1`` the kubelet speaks TLS with the pod and does not check its certificate, as Kubernetes does not. Either side
may speak first.
"""

import asyncio
import socket
import ssl
from ipaddress import ip_address

from podwire.errors import KernelError
from podwire.http.answer import Result, Upgrade, encode_switching
from podwire.http.message import Request, is_true, text_response
from podwire.http.pipe import Pipe
from podwire.kernel import netns

_CONNECT_S = 10.0
_SWITCHED = encode_switching((("Upgrade", "tcp"), ("Connection", "Upgrade")))


class _Paused(asyncio.Protocol):
    """Reads nothing until another protocol takes over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pauses reading."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


async def connect_pod(request: Request, path: str, ips: tuple[str, ...]) -> Result:
    """The connection to a pod whose network namespace is at ``path`` (empty: our own) and which has these addresses."""
    query = request.query()
    address, port = query.get("address", ""), query.get("port", "")
    if request.headers.get("upgrade", "").lower() != "tcp":
        return text_response(400, "an upgrade to tcp is needed")
    if address not in ips or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return text_response(400, f"the pod has no address {address!r}, or {port!r} is not a port")
    try:
        async with asyncio.timeout(_CONNECT_S):
            pod = await _dial(path, address, int(port), tls=is_true(query.get("tls")))
    except (OSError, KernelError) as failure:
        return text_response(503, f"dial tcp {address}:{port}: {failure}")
    except TimeoutError:
        return text_response(503, f"dial tcp {address}:{port}: i/o timeout")

    def take(transport: asyncio.Transport, leftover: bytes) -> asyncio.BaseProtocol:
        transport.write(_SWITCHED)
        pod.write(leftover)
        pod.set_protocol(Pipe(pod, transport))
        pod.resume_reading()
        return Pipe(transport, pod)

    return Upgrade(take)


async def _dial(path: str, address: str, port: int, *, tls: bool) -> asyncio.Transport:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    sock: socket.socket = netns.run_inside(path or None, lambda: socket.socket(family, socket.SOCK_STREAM))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(sock, (address, port))
        transport, _ = await loop.create_connection(
            _Paused, sock=sock, ssl=_unverified() if tls else None, server_hostname="" if tls else None
        )
    except BaseException:
        sock.close()
        raise
    return transport


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
