"""The health and the metrics of a component, to which its parts add checks.

A check returns its problem; a component is live when no check of ``live`` returns one, and ready when no check returns
one. Metrics are rendered in Prometheus' text form; its library is imported at the first request (3 MB, which an agent
without a scraper does not need).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from podwire.observe.distribution import Histogram

Check = Callable[[], str]
"""Returns the problem as a short text, or empty text."""


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
    """The checks and metrics of a component, by the part that added them."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}
        self.metrics: dict[str, Samples] = {}

    def live_problems(self) -> list[str]:
        """``PART: PROBLEM`` for each part that does not work."""
        return _problems(self.live)

    def ready_problems(self) -> list[str]:
        """``PART: PROBLEM`` for each part that does not work or is not ready yet."""
        return _problems(self.live | self.ready)

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
            for metric in samples():
                names = sorted(metric.labels)
                if metric.name not in families:
                    families[metric.name] = kinds[metric.kind](metric.name, metric.help, labels=names)
                numbers = (metric.buckets, metric.sum) if isinstance(metric, Histogram) else (metric.value,)
                families[metric.name].add_metric([metric.labels[name] for name in names], *numbers)
        return [families[name] for name in sorted(families)]


def _problems(checks: Mapping[str, Check]) -> list[str]:
    return [f"{part}: {problem}" for part, check in checks.items() if (problem := check())]
