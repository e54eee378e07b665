"""Passes events of the proxy to its health, its metrics and its health check ports."""

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
        """Applies programmed Services; ``moved``: the addresses of the node may have changed."""
        ...


class ProxyReport:
    """Receives the events of ``proxy.runner``."""

    def __init__(
        self, pulse: Pulse, metrics: ProxyMetrics, checks: Checks, clock: Clock, failed: Callable[[str], None]
    ) -> None:
        """``failed`` is called with the reason of each refused commit."""
        self._failed = failed
        self._pulse = pulse
        self._metrics = metrics
        self._checks = checks
        self._clock = clock
        self._pending: Pending | None = None
        self._began = 0.0
        self._queued_since = False

    def service_changed(self) -> None:
        """A Service changed."""
        self._metrics.service_changed()
        self._queue()

    def endpoints_changed(self, endpoint_slice: EndpointSlice) -> None:
        """An EndpointSlice was added, changed or removed."""
        self._metrics.endpoints_changed(endpoint_slice)
        self._queue()

    def _queue(self) -> None:
        self._queued_since = True
        self._pulse.queued()

    def begin(self) -> None:
        """A commit begins."""
        self._pending = self._metrics.take()
        self._began = self._clock.monotonic()
        self._queued_since = False

    def committed(self, changed: ServiceMap, *, full: bool) -> None:
        """The commit took effect; changes that were received since its start wait from now on."""
        if self._pending is not None:
            self._metrics.committed(self._pending, self._clock.monotonic() - self._began, full=full)
        self._pending = None
        self._pulse.committed()
        if self._queued_since:
            self._pulse.queued()
        self._checks.update(changed, moved=full)

    def refused(self, failure: KernelError) -> None:
        """The commit failed: its changes still wait, and the previous rules stay in force."""
        self._pulse.queued()
        self._failed(f"{failure}; Services stay as they were, and it is tried again")
        if self._pending is not None:
            self._metrics.refused(self._pending)
        self._pending = None

    def flows_forgotten(self, counts: Mapping[str, int], duration_s: float) -> None:
        """Stale flows were searched and deleted."""
        self._metrics.flows_forgotten(counts, duration_s)
