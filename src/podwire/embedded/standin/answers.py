"""The answers of the stand-in server: to HTTP paths, to a line of TCP and to a datagram.

Every answer names the pod that gave it and the client that it saw, so that a caller learns through which
Services, nodes and translations its packet went. Pure: bytes and values in, bytes out.
"""

from urllib.parse import parse_qsl

import msgspec


class StandinPort(msgspec.Struct, frozen=True):
    """A port to listen on; protocol TCP or UDP."""

    number: int
    protocol: str = "TCP"


class PodIdentity(msgspec.Struct, frozen=True):
    """The identity of the pod that answers."""

    pod: str
    namespace: str
    node: str
    container: str


class StandinOrder(msgspec.Struct, frozen=True):
    """The order to start a stand-in: identity, image (for the log), ports; with ``ends`` it exits at once with 0."""

    identity: PodIdentity
    image: str
    ports: tuple[StandinPort, ...]
    ends: bool = False


class StandinAnswer(msgspec.Struct, frozen=True):
    """One answer as it goes over the wire in JSON."""

    pod: str
    namespace: str
    node: str
    container: str
    port: int
    protocol: str
    client: str


class HttpAnswer(msgspec.Struct, frozen=True):
    """Status, JSON body, seconds to wait before sending."""

    status: int
    body: bytes
    delay_s: float = 0.0


def compose_answer(identity: PodIdentity, port: StandinPort, client: str) -> StandinAnswer:
    """The answer to any question on ``port`` from ``client``; a mapped IPv4 address is shown as IPv4."""
    return StandinAnswer(
        identity.pod, identity.namespace, identity.node, identity.container,
        port.number, port.protocol, client.removeprefix("::ffff:"),
    )  # fmt: skip


def line(answer: StandinAnswer) -> bytes:
    """The one-line form of raw TCP and UDP."""
    return msgspec.json.encode(answer) + b"\n"


def answer_http(path: str, answer: StandinAnswer) -> HttpAnswer:
    """The answer to a GET of ``path``: ``/status/<code>``, ``/sleep?ms=``, anything else 200."""
    parts = [part for part in path.partition("?")[0].split("/") if part]
    query = dict(parse_qsl(path.partition("?")[2]))
    status, delay_s = 200, 0.0
    if len(parts) == 2 and parts[0] == "status" and parts[1].isdigit() and 200 <= int(parts[1]) < 600:
        status = int(parts[1])
    elif parts == ["sleep"]:
        delay_s = min(60.0, int(query.get("ms", "0") or 0) / 1000) if query.get("ms", "0").isdigit() else 0.0
    return HttpAnswer(status, line(answer), delay_s)


def called_urls(path: str) -> tuple[str, ...]:
    """The ``url`` parameters of ``/call?url=...&url=...``; empty for any other path."""
    route, _, query = path.partition("?")
    return tuple(value for key, value in parse_qsl(query) if key == "url") if route == "/call" else ()
