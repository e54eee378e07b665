"""Tables of metrics.k8s.io, with the columns of metrics-server."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.tables.cells import NAME, Column, Json, Printer, at, name
from podwire.embedded.metrics.objects import quantities
from podwire.model.quantity import parse_milli, parse_nano

_COLUMNS = (
    NAME, Column("cpu", format="quantity"), Column("memory", format="quantity"), Column("Window", format="duration"),
)  # fmt: skip


def _node(obj: Json, _: datetime) -> list[Any]:
    return [name(obj), at(obj, "usage.cpu"), at(obj, "usage.memory"), at(obj, "window")]


def _pod(obj: Json, _: datetime) -> list[Any]:
    usages = [container["usage"] for container in at(obj, "containers", [])]
    cpu = sum(parse_nano(usage["cpu"]) for usage in usages)
    total = quantities(cpu, sum(parse_milli(usage["memory"]) for usage in usages) // 1000)
    return [name(obj), total["cpu"], total["memory"], at(obj, "window")]


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("metrics.k8s.io", "NodeMetrics"): Printer(_COLUMNS, _node),
    ("metrics.k8s.io", "PodMetrics"): Printer(_COLUMNS, _pod),
}
