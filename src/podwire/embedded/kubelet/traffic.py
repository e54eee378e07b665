"""The traffic of probes and hooks: HTTP, TCP, gRPC from the node to the pod, and commands inside it.

Each function returns a :class:`RequestOutcome` within its time limit. A failure of the other side is an outcome, never
an exception. An HTTP status from 200 to 399 is a success. Redirects are not followed and TLS certificates are not
verified, as in Kubernetes.
"""

import asyncio
import ssl

import msgspec

from podwire.embedded.standin.grpc import HealthAnswer, check_request
from podwire.errors import Disconnected
from podwire.http.client import connect, encode_request
from podwire.model.pod import ContainerPort, GRPCAction, HTTPGetAction, TCPSocketAction

_HEAD = 16 << 10


class RequestOutcome(msgspec.Struct, frozen=True):
    """Whether a probe or hook succeeded, and the message for an Event when it failed."""

    success: bool
    message: str = ""


def port_number(port: int | str, ports: tuple[ContainerPort, ...]) -> int:
    """The number of a port that a probe names by number or by a container port's name; 0 when the name is unknown."""
    if isinstance(port, int):
        return port
    if port.isdigit():
        return int(port)
    return next((p.container_port for p in ports if p.name == port), 0)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def get_http(action: HTTPGetAction, address: str, port: int, timeout_s: float) -> RequestOutcome:
    """Sends one GET request."""
    host = action.host or address
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{action.scheme.lower()}://{_shown(host)}:{port}{path}"
    headers = {"host": f"{_shown(host)}:{port}", "user-agent": "kube-probe/1.36", "accept": "*/*"}
    headers["connection"] = "close"
    headers |= {header.name.lower(): header.value for header in action.http_headers}
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect(host, port, _tls(action.scheme))
            try:
                connection.send(encode_request("GET", path, headers.items()))
                await connection.head()
            finally:
                connection.abort()
    except TimeoutError:
        return RequestOutcome(False, f'Get "{url}": context deadline exceeded (no answer in {timeout_s:g} s)')
    except (OSError, Disconnected) as failure:
        return RequestOutcome(False, f'Get "{url}": {_explain(failure, host, port)}')
    if 200 <= connection.status < 400:
        return RequestOutcome(True)
    return RequestOutcome(False, f"HTTP probe failed with statuscode: {connection.status}")


def _tls(scheme: str) -> ssl.SSLContext | None:
    if scheme != "HTTPS":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _explain(failure: Exception, host: str, port: int) -> str:
    if isinstance(failure, ConnectionRefusedError):
        return f"dial tcp {_shown(host)}:{port}: connect: connection refused"
    return str(failure)


async def open_tcp(action: TCPSocketAction, address: str, port: int, timeout_s: float) -> RequestOutcome:
    """Opens and closes one connection."""
    host = action.host or address
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return RequestOutcome(False, f"dial tcp {_shown(host)}:{port}: i/o timeout")
    except OSError as failure:
        return RequestOutcome(False, _explain(failure, host, port))
    writer.transport.abort()
    return RequestOutcome(True)


async def check_grpc(action: GRPCAction, address: str, timeout_s: float) -> RequestOutcome:
    """Calls the gRPC health service once."""
    answer = HealthAnswer()
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address, action.port)
            try:
                writer.write(check_request(f"{_shown(address)}:{action.port}", action.service or ""))
                while not answer.done:
                    data = await reader.read(_HEAD)
                    if not data:
                        break
                    answer.feed(data)
                    if answer.reply:
                        writer.write(answer.reply)
                        answer.reply = b""
            finally:
                writer.transport.abort()
    except TimeoutError:
        return RequestOutcome(False, f"timeout: health rpc did not complete within {timeout_s:g}s")
    except OSError as failure:
        return RequestOutcome(False, f'timeout: failed to connect service "{_shown(address)}:{action.port}": {failure}')
    return RequestOutcome(answer.serving, "" if answer.serving else 'service unhealthy (responded with "NOT_SERVING")')
