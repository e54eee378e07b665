"""One place that is told what the proxy does, for its health, its metrics and its health check ports."""

from collections.abc import Callable, Mapping
from typing import Protocol

from podwire.errors import KernelError
from podwire.model.service import EndpointSlice
from podwire.proxy.health import Pulse
from podwire.proxy.metrics import Pending, ProxyMetrics
from podwire.proxy.servicemap import ServiceMap
from podwire.runtime.clock import Clock


class Checks(Protocol):
    """The health check node ports."""

    def update(self, changed: ServiceMap, *, moved: bool = False) -> None:
        """Takes over Services as they are programmed now; ``moved``: the node's addresses may be others."""
        ...


class ProxyReport:
    """Passes on what ``proxy.runner`` tells."""

    def __init__(
        self, pulse: Pulse, metrics: ProxyMetrics, checks: Checks, clock: Clock, failed: Callable[[str], None]
    ) -> None:
        """``failed`` is told why a commit was refused, each time."""
        self._failed = failed
        self._pulse = pulse
        self._metrics = metrics
        self._checks = checks
        self._clock = clock
        self._carried: Pending | None = None
        self._began = 0.0
        self._queued_meanwhile = False

    def service_changed(self) -> None:
        """A Service changed."""
        self._metrics.service_changed()
        self._queue()

    def endpoints_changed(self, piece: EndpointSlice) -> None:
        """A slice came, changed or went."""
        self._metrics.endpoints_changed(piece)
        self._queue()

    def _queue(self) -> None:
        self._queued_meanwhile = True
        self._pulse.queued()

    def begin(self) -> None:
        """A commit begins."""
        self._carried = self._metrics.take()
        self._began = self._clock.monotonic()
        self._queued_meanwhile = False

    def committed(self, changed: ServiceMap, *, full: bool) -> None:
        """It took effect: what changed is told, and what came meanwhile waits from now on."""
        if self._carried is not None:
            self._metrics.committed(self._carried, self._clock.monotonic() - self._began, full=full)
        self._carried = None
        self._pulse.committed()
        if self._queued_meanwhile:
            self._pulse.queued()
        self._checks.update(changed, moved=full)

    def refused(self, failure: KernelError) -> None:
        """It did not: all that it carried still waits, and what was in force stays."""
        self._pulse.queued()
        self._failed(f"{failure}; Services stay as they were, and it is tried again")
        if self._carried is not None:
            self._metrics.refused(self._carried)
        self._carried = None

    def flows_forgotten(self, counts: Mapping[str, int], duration_s: float) -> None:
        """Stale flows were searched and deleted."""
        self._metrics.flows_forgotten(counts, duration_s)
