"""Renders objects as a ``Table``, which ``kubectl get`` requests instead of the objects.

The printer of a built-in kind is looked up by group and kind; a custom kind brings the columns of its
definition; all others show name and creation time. Cost is a few microseconds a cell; nothing is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.tables import cluster, devices, metrics, network, workloads
from podwire.embedded.apiserver.tables.cells import AGE, NAME, Column, Json, Printer, age, at, name, plain, since
from podwire.embedded.apiserver.tables.jsonpath import find

Include = Literal["None", "Metadata", "Object"]

PRINTERS: Mapping[tuple[str, str], Printer] = {
    **workloads.PRINTERS,
    **network.PRINTERS,
    **cluster.PRINTERS,
    **devices.PRINTERS,
    **metrics.PRINTERS,
}
"""Every built-in printer by group and kind."""

_DEFAULT = Printer(plain("Created At"), lambda obj, _: [name(obj), at(obj, "metadata.creationTimestamp", "")])
_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": column.priority,
    }


def _custom_cell(column: Json, obj: Json, now: datetime) -> Any:
    """One cell of a custom kind; None where the object has no such value or one of another type."""
    values = find(column.get("jsonPath", ""), obj)
    if not values or values[0] is None:
        return None
    value, kind = values[0], column.get("type", "string")
    if kind == "date":
        return since(value if isinstance(value, str) else None, now)
    if kind in ("integer", "number"):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    """A value that is no string, as Go's JSON or plain text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_compact(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(_compact, value)) + "]"
    return str(value)


def custom_printer(columns: Sequence[Json]) -> Printer:
    """The printer of a custom kind, from the ``additionalPrinterColumns`` of its version."""
    if not columns:
        return Printer((NAME, AGE), lambda obj, now: [name(obj), age(obj, now)])
    shown = tuple(
        Column(item.get("name", ""), item.get("type", "string"), item.get("priority", 0), item.get("format", ""))
        for item in columns
    )
    return Printer(
        (NAME, *shown),
        lambda obj, now: [name(obj), *(_custom_cell(column, obj, now) for column in columns)],
    )


def printer(kind: ResourceKind, columns: Sequence[Json] | None = None) -> Printer:
    """The printer of a kind; ``columns`` are those of a custom kind's definition."""
    if columns is not None or kind.custom:
        return custom_printer(columns or ())
    return PRINTERS.get((kind.group, kind.kind), _DEFAULT)


def _row(printer: Printer, obj: Json, now: datetime, include: Include) -> Json:
    row: Json = {"cells": printer.cells(obj, now)}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = {**_PARTIAL, "metadata": obj.get("metadata", {})}
    return row


def render(
    kind: ResourceKind,
    objects: Iterable[Json],
    now: datetime,
    *,
    include: Include = "Metadata",
    columns: Sequence[Json] | None = None,
) -> Json:
    """A ``meta.k8s.io/v1`` Table with one row an object; ``metadata`` is empty, for the caller to fill.

    ``include`` decides whether each row also has the object's metadata, the whole object, or neither.
    """
    shown = printer(kind, columns)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": [_definition(column) for column in shown.columns],
        "rows": [_row(shown, obj, now, include) for obj in objects],
    }
