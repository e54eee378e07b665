"""The small HTTP endpoint of a component: ``/healthz``, ``/readyz``, ``/metrics``.

``/healthz`` says that the process works, ``/readyz`` that it has done what others wait for; both answer 200 ``ok``
or 503 with a line per problem. ``/metrics`` is Prometheus' text form; its library is imported with the first
request (3 MB that an idle agent without a scraper need not hold). Requests other than GET, and heads
above 8 KiB, are refused. Source of the paths: Kubernetes' component conventions.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

Check = Callable[[], str]
"""Empty when all is well, else the problem in a few words."""

_HEAD_LIMIT = 8192
_REQUEST_S = 10.0


class Sample(msgspec.Struct, frozen=True):
    """One number of a metric; ``kind`` is gauge or counter."""

    name: str
    help: str
    value: float
    labels: dict[str, str] = {}
    kind: str = "gauge"


Samples = Callable[[], Iterable[Sample]]


class Health:
    """What a component reports; parts add their checks and metrics, ``serve`` answers."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}
        self.metrics: dict[str, Samples] = {}

    async def serve(self, address: str, port: int) -> None:
        """Answers until cancelled; port 0 means no endpoint."""
        if port == 0:
            return
        server = await asyncio.start_server(self._talk, address, port, limit=_HEAD_LIMIT)
        async with server:
            await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def answer(self, head: bytes) -> bytes:
        """The whole HTTP answer to a request's head."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return _response("405 Method Not Allowed", b"only GET\n")
        match words[1].decode("ascii", "replace").partition("?")[0]:
            case "/healthz" | "/livez":
                return _verdict(self.live)
            case "/readyz":
                return _verdict(self.live | self.ready)
            case "/metrics":
                return _response("200 OK", self.render(), "text/plain; version=0.0.4; charset=utf-8")
            case _:
                return _response("404 Not Found", b"/healthz /readyz /metrics\n")

    def render(self) -> bytes:
        """All metrics in Prometheus' text form, in the order of their names."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self.metrics))  # type: ignore[arg-type]
        return generate_latest(registry)


class _Collector:
    def __init__(self, parts: Mapping[str, Samples]) -> None:
        self._parts = parts

    def collect(self) -> Iterable[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for samples in self._parts.values():
            for one in samples():
                names = sorted(one.labels)
                if one.name not in families:
                    kind = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
                    families[one.name] = kind(one.name, one.help, labels=names)
                families[one.name].add_metric([one.labels[name] for name in names], one.value)
        return [families[name] for name in sorted(families)]


def _verdict(checks: Mapping[str, Check]) -> bytes:
    problems = [f"{name}: {problem}\n" for name, check in checks.items() if (problem := check())]
    if problems:
        return _response("503 Service Unavailable", "".join(problems).encode())
    return _response("200 OK", b"ok\n")


def _response(status: str, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
