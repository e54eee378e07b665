"""Counters of the DNS server, under the names and with the labels that dashboards for CoreDNS expect.

How it works: a request costs one increment of a cell. A cell belongs to one combination of labels and sizes and to one
writing thread, so no lock is needed, and the histograms of sizes cost nothing: each cell is one pair of sizes. How long
a reply took is measured for all replies that are computed or come from upstream, and for every 64th of those that are
kept, which then counts 64 times. Text is rendered at each scrape.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Series = tuple[str, tuple[tuple[str, str], ...], float]
"""Name, labels and value."""

SIZE_BOUNDS = (0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16000, 32000, 48000, 64000)
DURATION_BOUNDS = tuple(0.00025 * 2**step for step in range(16))
_EXACT_BYTES = 512
SAMPLED = 64
"""Of so many kept replies, one is measured."""


class QueryLabels(NamedTuple):
    """The labels of a reply: ``protocol`` is udp or tcp, ``family`` is "1" for IPv4 or "2" for IPv6."""

    zone: str
    protocol: str
    family: str
    qtype: str
    rcode: str
    plugin: str = ""
    dnssec_ok: bool = False
    view: str = ""
    template: tuple[str, ...] = ()
    """Zone and class of the template that made the reply."""


class Buckets:
    """A histogram; ``bounds`` are the upper limits of its buckets."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def series(self, name: str, labels: tuple[tuple[str, str], ...]) -> Iterable[Series]:
        """The buckets, the sum and the count."""
        count = 0
        for bound, own in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += own
            text = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f"{name}_bucket", (*labels, ("le", text)), count
        yield f"{name}_sum", labels, self.total
        yield f"{name}_count", labels, count


class QueryCounters:
    """Requests by their labels and sizes, and how long their replies took."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._cells: dict[tuple[str, QueryLabels, int, int], list[int]] = {}
        self._durations: dict[tuple[str, str, str], Buckets] = {}

    def cell(self, labels: QueryLabels, writer: str = "", request_bytes: int = 0, reply_bytes: int = 0) -> list[int]:
        """The one-element list that counts requests with these labels; one thread, ``writer``, may increment it."""
        # Large sizes are rounded up, so that clients cannot make any number of cells.
        request_bytes, reply_bytes = _rounded(request_bytes), _rounded(reply_bytes)
        return self._cells.setdefault((writer, labels, request_bytes, reply_bytes), [0])

    def durations(self, zone: str, view: str, writer: str = "") -> Buckets:
        """How long the replies to requests for names of ``zone`` took; one thread, ``writer``, may add to it."""
        key = (writer, zone, view)
        return self._durations.get(key) or self._durations.setdefault(key, Buckets(DURATION_BOUNDS))

    def took(self, labels: QueryLabels, seconds: float, writer: str = "") -> None:
        """Counts how long a reply took."""
        self.durations(labels.zone, labels.view, writer).observe(seconds)

    def total(self) -> int:
        """The number of requests."""
        return sum(cell[0] for cell in list(self._cells.values()))

    def series(self) -> Iterable[Series]:
        """All series, summed over the labels that a metric does not have."""
        counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        sizes: dict[tuple[str, tuple[tuple[str, str], ...]], Buckets] = {}

        def add(name: str, labels: tuple[tuple[str, str], ...], count: int) -> None:
            counts[name, labels] = counts.get((name, labels), 0) + count

        for (_, own, request_bytes, reply_bytes), cell in list(self._cells.items()):
            common = (("server", self.server), ("zone", own.zone), ("view", own.view))
            by_protocol = (*common, ("proto", own.protocol))
            add("coredns_dns_requests_total", (*by_protocol, ("family", own.family), ("type", own.qtype)), cell[0])
            plugin = own.plugin or ("forward" if own.zone == "." else "kubernetes")
            add("coredns_dns_responses_total", (*common, ("rcode", own.rcode), ("plugin", plugin)), cell[0])
            if own.template:
                zone, rclass = own.template
                matched = (("server", self.server), ("zone", zone), ("view", own.view), ("class", rclass))
                add("coredns_template_matches_total", (*matched, ("type", own.qtype)), cell[0])
            if own.dnssec_ok:
                add("coredns_dns_do_requests_total", common, cell[0])
            for name, size in (("request", request_bytes), ("response", reply_bytes)):
                key = (f"coredns_dns_{name}_size_bytes", by_protocol)
                sizes.setdefault(key, Buckets(SIZE_BOUNDS)).observe(size, cell[0])
        yield from ((name, labels, count) for (name, labels), count in counts.items())
        for (name, labels), buckets in sizes.items():
            yield from buckets.series(name, labels)
        for (_, zone, view), buckets in list(self._durations.items()):
            labels = (("server", self.server), ("zone", zone), ("view", view))
            yield from buckets.series("coredns_dns_request_duration_seconds", labels)


def _rounded(size: int) -> int:
    return size if size <= _EXACT_BYTES else -(-size // _EXACT_BYTES) * _EXACT_BYTES


_HISTOGRAMS = ("_bucket", "_sum", "_count")


def render(series: Iterable[Series]) -> bytes:
    """The text exposition format; series of one metric are consecutive, and equal ones are added up."""
    by_name: dict[str, dict[str, float]] = {}
    for name, labels, value in series:
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
        row = f"{name}{{{pairs}}}" if pairs else name
        rows = by_name.setdefault(_family(name), {})
        rows[row] = rows.get(row, 0) + value
    lines = []
    for name, rows in by_name.items():
        histogram = any(row.startswith(f"{name}_bucket{{") for row in rows)
        kind = "histogram" if histogram else "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE {name} {kind}")
        lines += [f"{row} {int(value) if float(value).is_integer() else value}" for row, value in rows.items()]
    return ("\n".join(lines) + "\n").encode()


def _family(name: str) -> str:
    """The name of the metric that a series belongs to."""
    for suffix in _HISTOGRAMS:
        base = name.removesuffix(suffix)
        if base != name and base.endswith(("_seconds", "_bytes")):
            return base
    return name


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
