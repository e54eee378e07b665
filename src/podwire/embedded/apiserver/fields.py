"""Label and field selectors of lists and watches.

Each kind has only a few selectable fields. Their values are read once, when an object is stored, so a selector costs
one dictionary look-up per term. Sources: the ``GetAttrs`` and ``AddFieldLabelConversionFunc`` tables of Kubernetes'
``pkg/registry`` and ``pkg/apis/core/v1/conversion.go``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from podwire.errors import ApiError, ConfigError
from podwire.model.selector import Selector, field_terms, parse_selector

_COMMON = ("metadata.name", "metadata.namespace")
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

SELECTABLE: dict[str, tuple[str, ...]] = {
    "/pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    "/nodes": ("spec.unschedulable",),
    "/namespaces": ("status.phase",),
    "/secrets": ("type",),
    "/services": ("spec.clusterIP", "spec.type"),
    "/replicationcontrollers": ("status.replicas",),
    "/events": (
        *(f"involvedObject.{name}" for name in _REFERENCE), "reason", "reportingComponent", "source", "type",
    ),
    "apps/replicasets": ("status.replicas",),
    "batch/jobs": ("status.successful",),
    "certificates.k8s.io/certificatesigningrequests": ("spec.signerName",),
    "networking.k8s.io/ipaddresses": ("spec.parentRef.name",),
    "resource.k8s.io/resourceslices": ("spec.driver", "spec.nodeName"),
}  # fmt: skip
"""Fields of each table besides ``metadata.name`` and ``metadata.namespace``."""


def value_at(obj: dict[str, Any], path: str) -> str:
    """The text of a field, empty when the object does not have it."""
    value: Any = obj
    for segment in path.split("."):
        value = value.get(segment) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def selectable(table: str, obj: dict[str, Any]) -> dict[str, str]:
    """The values of the selectable fields of one object."""
    values = {path: value_at(obj, path) for path in SELECTABLE.get(table, ())}
    if table == "/events":
        values["source"] = value_at(obj, "source.component") or values["reportingComponent"]
        values["reportingComponent"] = values["reportingComponent"] or value_at(obj, "source.component")
    elif table == "/pods":
        values["status.podIPs"] = values["status.podIP"]
        values["spec.hostNetwork"] = values["spec.hostNetwork"] or "false"
    elif table == "/nodes":
        values["spec.unschedulable"] = values["spec.unschedulable"] or "false"
    return values


class Filter(msgspec.Struct, frozen=True):
    """The selection of a list or watch; ``name`` and ``namespace`` come from field terms or the path."""

    labels: Selector | None = None
    fields: tuple[tuple[str, str, bool], ...] = ()
    namespace: str = ""
    name: str = ""
    read: Callable[[Any], Mapping[str, str]] | None = None
    """Reads the selectable fields of a custom object, which its definition names; None when none is selected by."""

    def matches(self, entry: Any) -> bool:
        """Whether an entry of the store is selected."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        if self.labels is not None and not self.labels.matches(entry.labels):
            return False
        own = self.read(entry) if self.read is not None else {}
        return all((_field(entry, path, own) == value) != negated for path, value, negated in self.fields)

    @property
    def coarse(self) -> "Filter":
        """The filter without the fields of custom objects."""
        if self.read is None:
            return self
        common = tuple(term for term in self.fields if term[0] in _COMMON)
        return msgspec.structs.replace(self, fields=common, read=None)

    @property
    def selective(self) -> bool:
        """Whether the filter has any term besides the namespace."""
        return bool(self.name or self.fields or self.labels is not None)


def _field(entry: Any, path: str, own: Mapping[str, str]) -> str:
    if path == "metadata.name":
        return str(entry.name)
    if path == "metadata.namespace":
        return str(entry.namespace)
    return own[path] if path in own else str(entry.fields.get(path, ""))


_VIEWS = {"regarding.": "involvedObject.", "reportingController": "reportingComponent"}


def parse_filter(
    table: str,
    query: dict[str, str],
    namespace: str,
    name: str = "",
    custom: tuple[Sequence[str], Callable[[Any], Mapping[str, str]]] = ((), lambda _: {}),
) -> Filter:
    """The filter of a request; ``custom`` are the selectable fields of a custom kind, and what reads them.

    Raises: ApiError 400 with the term that does not parse or the field that cannot be selected by.
    """
    try:
        labels = parse_selector(query["labelSelector"]) if query.get("labelSelector") else None
        terms = field_terms(query["fieldSelector"]) if query.get("fieldSelector") else ()
    except ConfigError as failure:
        raise ApiError(400, "BadRequest", f"unable to parse requirement: {failure.problem}") from failure
    paths, read = custom
    allowed = (*SELECTABLE.get(table, ()), *paths)
    label_terms: list[tuple[str, str, bool]] = []
    for path, value, negated in terms:
        for view_prefix, stored_prefix in _VIEWS.items():
            if table == "/events" and path.startswith(view_prefix):
                path = path.replace(view_prefix, stored_prefix, 1)
        if path not in allowed and path not in _COMMON:
            raise ApiError(400, "BadRequest", f"field label not supported: {path}")
        if path == "metadata.name" and not negated and not name:
            name = value
        else:
            label_terms.append((path, value, negated))
    custom_terms = any(path in paths for path, _, _ in label_terms)
    return Filter(labels, tuple(label_terms), namespace, name, read if custom_terms else None)
