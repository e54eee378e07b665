"""The answers of the stand-in server to HTTP requests, to lines over TCP and to datagrams. Pure.

Every answer names the pod that answers and the client address that the pod saw, so a caller can see which endpoint a
Service chose and whether the source address was translated.
"""

from urllib.parse import parse_qsl

import msgspec


class StandinPort(msgspec.Struct, frozen=True):
    """A port on which the stand-in listens; the protocol is TCP or UDP."""

    number: int
    protocol: str = "TCP"


class PodIdentity(msgspec.Struct, frozen=True):
    """The identity of the pod that answers."""

    pod: str
    namespace: str
    node: str
    container: str


class StandinOrder(msgspec.Struct, frozen=True):
    """The order to start a stand-in: identity, image (for the log), ports; ``ends``: end at once with status 0."""

    identity: PodIdentity
    image: str
    ports: tuple[StandinPort, ...]
    ends: bool = False


class StandinAnswer(msgspec.Struct, frozen=True):
    """One answer, sent as JSON."""

    pod: str
    namespace: str
    node: str
    container: str
    port: int
    protocol: str
    client: str


class HttpAnswer(msgspec.Struct, frozen=True):
    """Status code, JSON body, seconds to wait before the answer is sent."""

    status: int
    body: bytes
    delay_s: float = 0.0


def compose_answer(identity: PodIdentity, port: StandinPort, client: str) -> StandinAnswer:
    """The answer to any request on ``port`` from ``client``; an IPv4 address mapped to IPv6 is written as IPv4."""
    return StandinAnswer(
        identity.pod, identity.namespace, identity.node, identity.container,
        port.number, port.protocol, client.removeprefix("::ffff:"),
    )  # fmt: skip


def line(answer: StandinAnswer) -> bytes:
    """The answer as one line, for TCP without HTTP and for UDP."""
    return msgspec.json.encode(answer) + b"\n"


def answer_http(path: str, answer: StandinAnswer) -> HttpAnswer:
    """The answer to a request of ``path``: ``/status/<code>``, ``/sleep?ms=<ms>``, status 200 for all other paths."""
    segments = [part for part in path.partition("?")[0].split("/") if part]
    query = dict(parse_qsl(path.partition("?")[2]))
    status, delay_s = 200, 0.0
    if len(segments) == 2 and segments[0] == "status" and segments[1].isdigit() and 200 <= int(segments[1]) < 600:
        status = int(segments[1])
    elif segments == ["sleep"]:
        delay_s = min(60.0, int(query.get("ms", "0") or 0) / 1000) if query.get("ms", "0").isdigit() else 0.0
    return HttpAnswer(status, line(answer), delay_s)


def called_urls(path: str) -> tuple[str, ...]:
    """The ``url`` parameters of ``/call?url=...&url=...``; empty for all other paths."""
    route, _, query = path.partition("?")
    return tuple(value for key, value in parse_qsl(query) if key == "url") if route == "/call" else ()
