"""Counters of the DNS server, under the names that dashboards for CoreDNS expect.

A request costs one increment of a cell. Replies with the same labels and the same writing thread share a cell, so no
lock is needed. Text is rendered at each scrape.
"""

from collections.abc import Iterable

Labels = tuple[str, str, str, str, str]
"""Zone, protocol, family ("1" IPv4, "2" IPv6), type, response code."""

Series = tuple[str, tuple[tuple[str, str], ...], float]


class QueryCounters:
    """Requests by their labels."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._cells: dict[tuple[str, Labels], list[int]] = {}

    def cell(self, labels: Labels, writer: str = "") -> list[int]:
        """The one-element list that counts requests with these labels; one thread, ``writer``, may increment it."""
        return self._cells.setdefault((writer, labels), [0])

    def series(self) -> Iterable[Series]:
        """Requests and responses, summed over the labels that the metric does not have."""
        requests: dict[tuple[tuple[str, str], ...], int] = {}
        responses: dict[tuple[tuple[str, str], ...], int] = {}
        for (_, (zone, protocol, family, qtype, rcode)), cell in list(self._cells.items()):
            common = (("server", self._server), ("zone", zone), ("view", ""))
            request = (*common, ("proto", protocol), ("family", family), ("type", qtype))
            response = (*common, ("rcode", rcode), ("plugin", "forward" if zone == "." else "kubernetes"))
            requests[request] = requests.get(request, 0) + cell[0]
            responses[response] = responses.get(response, 0) + cell[0]
        yield from (("coredns_dns_requests_total", labels, count) for labels, count in requests.items())
        yield from (("coredns_dns_responses_total", labels, count) for labels, count in responses.items())


def render(series: Iterable[Series]) -> bytes:
    """The text exposition format; series of one metric are consecutive."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in series:
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
        number = int(value) if float(value).is_integer() else value
        by_name.setdefault(name, []).append(f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}")
    lines = []
    for name, rows in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += rows
    return ("\n".join(lines) + "\n").encode()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
