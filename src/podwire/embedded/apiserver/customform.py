"""Defaults and selectable fields of one version of a custom kind, which stored objects get when they are read.

A default that is added to a definition later applies to stored objects, too: it is filled in when an object is read,
and stored with the object's next write, as in Kubernetes. The text with defaults is cached with the object until the
definition changes.

Source: ``k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting``; ``pkg/registry/customresource``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver import crd, views
from podwire.embedded.apiserver.fields import Filter, parse_filter, value_at
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.store import StoredObject

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_PARENTS = ("items", "additionalProperties")


class VersionForm:
    """Defaults and selectable fields of one version; compared by identity, so a changed definition has a new one."""

    __slots__ = ("_api_version", "_schema", "selectable")

    def __init__(self, api_version: str, version: Object) -> None:
        self._api_version = api_version
        self._schema: Object = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        self.selectable: tuple[str, ...] = tuple(
            field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()
        )
        """The paths of the fields, as field selectors spell them: ``spec.color``."""

    def filled(self, obj: Object) -> Object:
        """An object with the defaults of this version."""
        filled_object: Object = crd.fill(obj, self._schema)
        return filled_object

    def render(self, raw: bytes) -> bytes:
        """The text of a stored object in this version, with defaults; the same text when nothing is added."""
        obj: Object = _decode(raw)
        filled_object = self.filled({**obj, "apiVersion": self._api_version})
        return raw if filled_object == obj else _encode(filled_object)


def form_of(api_version: str, version: Object) -> VersionForm | None:
    """The form of a version of a definition; None when it has neither defaults nor selectable fields."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    needs_form = bool(version.get("selectableFields")) or _has_default(schema)
    return VersionForm(api_version, version) if needs_form else None


def _has_default(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    children = [*(schema.get("properties") or {}).values(), *(schema.get(parent) for parent in _PARENTS)]
    return "default" in schema or any(map(_has_default, children))


def parse_selection(kind: ResourceKind, query: dict[str, str], namespace: str, name: str = "") -> Filter:
    """The filter of a request for a kind.

    A filter by fields of a custom kind raises :class:`podwire.embedded.apiserver.views.Unconverted` for an object that
    a webhook has to convert first.

    Raises: ApiError 400 with the term that does not parse or the field that cannot be selected by.
    """
    paths = kind.form.selectable if kind.form is not None else ()
    return parse_filter(kind.table, query, namespace, name, (paths, _field_reader(kind, paths)))


def _field_reader(kind: ResourceKind, paths: tuple[str, ...]) -> Callable[[StoredObject], Mapping[str, str]]:
    form = kind.form

    def read(entry: StoredObject) -> Mapping[str, str]:
        known = entry.selected
        if known is None or known[0] is not form:
            obj = views.decoded(kind, entry)
            known = entry.selected = (form, {path: value_at(obj, path) for path in paths})
        return known[1]

    return read
