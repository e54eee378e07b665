"""The built-in types: packaged OpenAPI definitions and a tree of schema nodes over them.

Two compressed files hold the definitions that Kubernetes 1.36 publishes, reduced to the kinds served here:
structure, and descriptions that only ``kubectl explain`` needs. Each is read once, on first use (about 15 ms
for the structure, which every write needs). A :class:`SchemaNode` is a view of one definition or one
subschema; each child is made once, on first use, so recursive types cost nothing.

The extensions of the API conventions become plain attributes: how the writes of two clients to a list are merged
(``atomic``, ``set`` or ``map`` with keys), and how a strategic merge patch treats it. When a list has a patch strategy
but no list type, the list type follows from the strategy, as in kube-openapi's ``schemaconv``.
"""

import json
import lzma
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

Definitions = Mapping[str, Any]

INT_OR_STRING = "int-or-string"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."


def read(name: str) -> dict[str, Any]:
    """One packaged JSON file, decompressed."""
    data = files("podwire.embedded.apiserver.schema").joinpath(name).read_bytes()
    out: dict[str, Any] = json.loads(lzma.decompress(data))
    return out


@cache
def definitions() -> Definitions:
    """Every packaged definition by its dotted name; references are bare names."""
    return read("types.json.xz")


@cache
def descriptions() -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """Per definition its own description and those of its fields."""
    return read("descriptions.json.xz")


@cache
def names() -> Mapping[tuple[str, str, str], str]:
    """The definition's name for each group, version and kind."""
    out: dict[tuple[str, str, str], str] = {}
    for name, body in definitions().items():
        for gvk in body.get("x-kubernetes-group-version-kind", ()):
            out[gvk["group"], gvk["version"], gvk["kind"]] = name
    return out


class SchemaNode:
    """The schema of the values at one path of an object.

    ``type`` is object, array, string, integer, number, boolean, ``int-or-string`` or empty for any value.
    A map has ``additional`` and no ``properties``; a struct has ``properties``.
    """

    def __init__(self, raw: Definitions, where: Definitions) -> None:
        self._where = where
        declared = raw
        if "allOf" in raw and "$ref" not in raw and len(raw["allOf"]) == 1 and "properties" not in raw:
            raw = raw["allOf"][0] | {key: value for key, value in raw.items() if key != "allOf"}
        self.name: str = raw.get("$ref", "")
        self.raw: Definitions = where[self.name] if self.name else raw
        self._declared = declared
        self.type = _type_of(self.raw)

    def _get(self, key: str, default: Any = None) -> Any:
        """An attribute of the path itself, else of the type that it refers to."""
        return self._declared.get(key, self.raw.get(key, default))

    @cached_property
    def properties(self) -> Mapping[str, "SchemaNode"]:
        """The fields of a struct; empty for a map."""
        properties = self.raw.get("properties", {})
        return {name: SchemaNode(sub, self._where) for name, sub in properties.items()}

    @cached_property
    def required(self) -> frozenset[str]:
        """Names of the fields that must be present."""
        return frozenset(self.raw.get("required", ()))

    @cached_property
    def items(self) -> "SchemaNode":
        """The schema of a list's items; any value when the schema does not define it."""
        return SchemaNode(self.raw.get("items", {}), self._where)

    @cached_property
    def additional(self) -> "SchemaNode | None":
        """The schema of a map's values, None for a struct or a plain value."""
        additional = self.raw.get("additionalProperties")
        if additional is None or additional is False:
            return None
        return SchemaNode({} if additional is True else additional, self._where)

    @cached_property
    def preserves_unknown(self) -> bool:
        """Whether any field is allowed: free-form values, embedded objects and raw extensions."""
        if self._get("x-kubernetes-preserve-unknown-fields", False):
            return True
        return self.type in ("", "object") and not self.properties and self.additional is None

    @cached_property
    def list_keys(self) -> tuple[str, ...]:
        """The key fields of an associative list."""
        keys = self._get("x-kubernetes-list-map-keys")
        if keys:
            return tuple(keys)
        return (self.merge_key,) if self.merge_key and self.patch_merges else ()

    @cached_property
    def list_type(self) -> str:
        """``atomic``, ``set`` or ``map``."""
        list_type: str | None = self._get("x-kubernetes-list-type")
        if list_type:
            return list_type
        if self.patch_merges:
            return "map" if self.merge_key else "set"
        return "atomic"

    @cached_property
    def map_atomic(self) -> bool:
        """Whether an object is owned and replaced as a whole."""
        return bool(self._get("x-kubernetes-map-type") == "atomic")

    @cached_property
    def patch_strategies(self) -> tuple[str, ...]:
        """Of a strategic merge patch: ``merge``, ``replace``, ``retainKeys``."""
        strategy: str = self._get("x-kubernetes-patch-strategy") or ""
        return tuple(strategy.split(",")) if strategy else ()

    @property
    def patch_merges(self) -> bool:
        """Whether a strategic merge patch merges the list instead of replacing it."""
        return "merge" in self.patch_strategies

    @cached_property
    def merge_key(self) -> str:
        """The key by which a strategic merge patch finds an item; empty for lists of plain values."""
        return str(self._get("x-kubernetes-patch-merge-key") or "")

    @property
    def default(self) -> Any:
        """The default value, or None."""
        return self._get("default")

    @property
    def format(self) -> str:
        """``int32``, ``int64``, ``byte``, ``date-time`` or empty."""
        return str(self.raw.get("format", ""))

    def child(self, field: str) -> "SchemaNode | None":
        """The schema of a field or map value, None where the field is unknown."""
        declared = self.properties.get(field)
        return self.additional if declared is None else declared


def _type_of(raw: Definitions) -> str:
    if raw.get("x-kubernetes-int-or-string") or raw.get("format") == INT_OR_STRING:
        return INT_OR_STRING
    type_name: str = raw.get("type", "")
    if not type_name and "properties" in raw:
        return "object"
    if not type_name and "oneOf" in raw and all("type" in option for option in raw["oneOf"]):
        return "quantity"
    return type_name


@cache
def named(name: str) -> SchemaNode:
    """The node of one definition."""
    return SchemaNode({"$ref": name}, definitions())


@cache
def for_kind(group: str, version: str, kind: str) -> SchemaNode | None:
    """The node of a built-in kind, None for kinds that are not built in."""
    name = names().get((group, version, kind))
    return named(name) if name else None


@cache
def object_meta() -> SchemaNode:
    """The node of ``metadata``, which custom objects share."""
    return named(_META + "ObjectMeta")
