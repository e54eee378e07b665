"""The metrics of the answers in the kernel."""

from collections.abc import Iterator

from podwire.dns.bpf.entries import ANSWERS, COUNTERS
from podwire.dns.bpf.table import DnsTable
from podwire.observe.health import Sample

_ANSWERED = {
    "a": ("A", "NOERROR"),
    "aaaa": ("AAAA", "NOERROR"),
    "nodata": ("", "NOERROR"),
    "nxdomain": ("", "NXDOMAIN"),
}
REASONS = {
    "client": "the pod has an egress policy, or the source is not its address",
    "off": "the zone is not complete yet, or the kernel refused an entry",
    "lease": "the agent has not renewed the answers",
    "form": "the query has a form that only the server answers",
    "checksum": "the checksum is wrong or ambiguous",
    "long": "the name or the query is too long",
    "foreign": "the name is outside of the cluster's zone",
    "name": "the name has records that only the server has",
    "type": "the name exists, and the type is neither A nor AAAA",
    "changed": "the records changed while the query was answered",
    "busy": "a real-time kernel interrupted the answer to another query",
}
"""Why queries go to the server, by the label of the metric."""


def samples(table: DnsTable) -> Iterator[Sample]:
    """What the kernel answered, what it passed on and why, and whether it answers now."""
    counters = table.counters()
    for name in COUNTERS[:ANSWERS] if counters else ():
        qtype, rcode = _ANSWERED[name]
        labels = {"type": qtype or "no data", "rcode": rcode}
        text = "DNS queries that the kernel answered."
        yield Sample("podwire_dns_kernel_answers_total", text, counters[name], labels, kind="counter")
    for name in COUNTERS[ANSWERS:] if counters else ():
        text = "DNS queries that the kernel passed to the servers, by reason."
        yield Sample("podwire_dns_kernel_passed_total", text, counters[name], {"reason": name}, kind="counter")
    yield Sample("podwire_dns_kernel_answering", "Whether the kernel answers DNS queries.", int(table.answering))
    yield Sample("podwire_dns_kernel_entries", "Names of Services and endpoints in the kernel.", table.entries)
