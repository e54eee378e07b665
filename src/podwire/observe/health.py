"""The small HTTP endpoint of a component: ``/healthz``, ``/readyz``, ``/metrics``.

``/healthz`` says that the process works, ``/readyz`` that it has done what others wait for; both answer 200 ``ok``
or 503 with a line per problem; parts may have pages of their own besides. ``/metrics`` is Prometheus' text form; its
library is imported with the first request (3 MB that an idle agent without a scraper need not hold). Source of the
paths: Kubernetes' component conventions.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from podwire.observe.distribution import Histogram
from podwire.observe.pages import Page
from podwire.observe.reply import HEAD_LIMIT, reply, response, talk

Check = Callable[[], str]
"""Empty when all is well, else the problem in a few words."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of :meth:`Health.render`."""


class Sample(msgspec.Struct, frozen=True):
    """One number of a metric; ``kind`` is gauge or counter."""

    name: str
    help: str
    value: float
    labels: dict[str, str] = {}
    kind: str = "gauge"


Metric = Sample | Histogram
Samples = Callable[[], Iterable[Metric]]


class Health:
    """What a component reports; parts add their checks and metrics, ``serve`` answers."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}
        self.metrics: dict[str, Samples] = {}
        self.pages: dict[str, Page] = {}

    async def serve(self, address: str, port: int) -> None:
        """Answers until cancelled; port 0 means no endpoint."""
        if port == 0:
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await talk(self._page, reader, writer, self.pages)

        server = await asyncio.start_server(serve, address, port, limit=HEAD_LIMIT)
        async with server:
            await server.serve_forever()

    def answer(self, head: bytes) -> bytes:
        """The whole HTTP answer to a request's head."""
        return reply(head, self._page, self.pages)

    def _page(self, path: str) -> bytes:
        match path:
            case "/healthz" | "/livez":
                return _verdict(self.live)
            case "/readyz":
                return _verdict(self.live | self.ready)
            case "/metrics":
                return response("200 OK", self.render(), METRICS_TYPE)
            case _:
                return response("404 Not Found", f"{' '.join(('/healthz /readyz /metrics', *self.pages))}\n".encode())

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
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        families: dict[str, Any] = {}
        for samples in self._parts.values():
            for one in samples():
                names = sorted(one.labels)
                if one.name not in families:
                    families[one.name] = kinds[one.kind](one.name, one.help, labels=names)
                numbers = (one.buckets, one.sum) if isinstance(one, Histogram) else (one.value,)
                families[one.name].add_metric([one.labels[name] for name in names], *numbers)
        return [families[name] for name in sorted(families)]


def _verdict(checks: Mapping[str, Check]) -> bytes:
    problems = [f"{name}: {problem}\n" for name, check in checks.items() if (problem := check())]
    if problems:
        return response("503 Service Unavailable", "".join(problems).encode())
    return response("200 OK", b"ok\n")
