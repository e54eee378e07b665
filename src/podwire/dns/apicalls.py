"""The server's requests to the Kubernetes API, under CoreDNS' names.

A request is measured until its answer has arrived, a watch until its answer begins. The duration of the limiter is how
long a request waited because too many others were under way.
"""

from collections.abc import Iterator

from podwire.dns.metrics import Buckets, Series
from podwire.kube.pool import ApiCall

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PREFIX = "coredns_kubernetes_rest_client"


class ApiCalls:
    """The requests to one API server; ``host`` is its address, with the port if there is one."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._durations: dict[str, Buckets] = {}
        self._waits: dict[str, Buckets] = {}
        self._results: dict[tuple[str, str], int] = {}

    def observe(self, call: ApiCall) -> None:
        """Counts a request that has its answer, or got none."""
        for table, seconds in ((self._durations, call.seconds), (self._waits, call.waited_s)):
            table.setdefault(call.method, Buckets(_BOUNDS)).observe(seconds)
        key = (str(call.status) if call.status else "<error>", call.method)
        self._results[key] = self._results.get(key, 0) + 1

    def series(self) -> Iterator[Series]:
        """The histograms and the counter."""
        for name, table in (("request_duration", self._durations), ("rate_limiter_duration", self._waits)):
            for method, buckets in table.items():
                yield from buckets.series(f"{_PREFIX}_{name}_seconds", (("verb", method), ("host", self._host)))
        for (code, method), count in self._results.items():
            labels = (("code", code), ("method", method), ("host", self._host))
            yield f"{_PREFIX}_requests_total", labels, count
