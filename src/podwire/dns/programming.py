"""How long it takes until a changed endpoint is answered: the metric that DNS servers of Kubernetes share.

How it works: the controller of EndpointSlices writes the time of the pod's change into an annotation of the slice. The
duration is measured when the zone has the slice, for headless Services: the names of others do not depend on their
endpoints. Changes before the start of the process are not measured. Cost: a look-up per changed slice.

Source: Kubernetes' definition of the DNS programming latency (sig-scalability).
"""

import datetime
from collections.abc import Iterable

from podwire.dns.metrics import Buckets, Series
from podwire.model.meta import ObjectMeta
from podwire.model.service import TRIGGER_TIME_ANNOTATION
from podwire.runtime.clock import parse_rfc3339

_BOUNDS = tuple(0.001 * 2**step for step in range(20))


class ProgrammingTimes:
    """The durations since ``started``."""

    def __init__(self, started: datetime.datetime) -> None:
        self._started = started
        self._arrived: dict[str, datetime.datetime] = {}
        self._durations = Buckets(_BOUNDS)

    def arrived(self, meta: ObjectMeta) -> None:
        """Keeps the time of the change that a slice came with."""
        text = meta.annotations.get(TRIGGER_TIME_ANNOTATION, "")
        try:
            changed = parse_rfc3339(text) if text else None
        except ValueError:
            return
        if changed is not None and changed > self._started:
            self._arrived[f"{meta.namespace}/{meta.name}"] = changed

    def answered(self, key: str, now: datetime.datetime, *, headless: bool) -> None:
        """Measures a slice that the zone has now."""
        changed = self._arrived.pop(key, None)
        if changed is not None and headless:
            self._durations.observe(max(0.0, (now - changed).total_seconds()))

    def series(self) -> Iterable[Series]:
        """The histogram."""
        labels = (("service_kind", "headless_with_selector"),)
        return self._durations.series("coredns_kubernetes_dns_programming_duration_seconds", labels)
