"""OpenAPI documents for ``kubectl explain``, ``kubectl apply`` and validation in clients.

Version 3 is an index of group versions with one document for each; version 2 is one document for all kinds. The schemas
are those of Kubernetes with their descriptions. Paths list only the parts that clients use: the operations on each
resource with their kind, and the query parameters of writes (kubectl sees from a PATCH with ``fieldValidation`` that
the server validates).

A document is made at its first request and kept as bytes. Its hash is computed from its inputs, so the index needs no
document; clients cache documents by hash. A :class:`Documents` object never changes; a new object is made when the
kinds change.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from podwire.embedded.apiserver import openapi_merge, openapi_protobuf
from podwire.embedded.apiserver.kinds import GROUPS, ResourceKind
from podwire.embedded.apiserver.openapi_references import reachable
from podwire.embedded.apiserver.schema import data

Json = dict[str, Any]
GroupVersionKind = tuple[str, str, str]

V3_REF = "#/components/schemas/"
V2_REF = "#/definitions/"
INFO = {"title": "Kubernetes", "version": "v1.36.0"}
_INT_OR_STRING = {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "get": (),
    "post": ("dryRun", "fieldManager", "fieldValidation"),
    "put": ("dryRun", "fieldManager", "fieldValidation"),
    "patch": ("dryRun", "fieldManager", "fieldValidation", "force"),
    "delete": ("dryRun", "gracePeriodSeconds", "propagationPolicy"),
}
_STRATEGIC = "application/strategic-merge-patch+json"
"""Built-in kinds alone take it; kubectl chooses its patch by this list."""
_BODIES: Mapping[str, tuple[str, ...]] = {
    "post": ("application/json", "application/yaml"),
    "put": ("application/json", "application/yaml"),
    "patch": (
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
        _STRATEGIC,
    ),
}
_TYPES = {"force": "boolean", "gracePeriodSeconds": "integer"}
_ACTIONS = {"get": "get", "put": "update", "patch": "patch", "delete": "delete", "post": "post"}
_VERBS = {"get": "get", "put": "update", "patch": "patch", "delete": "delete"}


def custom_name(gvk: GroupVersionKind) -> str:
    """The definition name of a custom kind: its group turned round, version, kind."""
    group, version, kind = gvk
    return ".".join([*reversed(group.split(".")), version, kind])


def _schema(node: Json, prefix: str) -> Json:
    """A node with its references in document form; in version 3 a reference beside other keys is wrapped."""
    out: Json = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {name: _schema(sub, prefix) for name, sub in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            out[key] = _schema(value, prefix)
        elif key != "$ref":
            out[key] = value
    target = node.get("$ref")
    if target is None:
        return out
    reference = {"$ref": prefix + target}
    if prefix == V2_REF or not out:
        return {**reference, **out}
    return {"allOf": [reference], **out}


def definition(name: str, prefix: str) -> Json:
    """One built-in definition with its descriptions."""
    raw: Json = data.definitions()[name]
    if raw.get("format") == data.INT_OR_STRING and prefix == V3_REF:
        return dict(_INT_OR_STRING)
    if "oneOf" in raw and prefix == V2_REF:
        return {"type": "string"}
    text, fields = data.descriptions().get(name, ("", {}))
    if "properties" in raw:
        properties = {
            field: {"description": fields[field], **body} if field in fields else body
            for field, body in raw["properties"].items()
        }
        raw = {**raw, "properties": properties}
    out = _schema(raw, prefix)
    return {"description": text, **out} if text else out


def custom_definition(gvk: GroupVersionKind, schema: Json, prefix: str) -> Json:
    """The definition of a custom kind, with the fields that every object has."""
    meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    kind = data.definitions()["io.k8s.api.core.v1.ConfigMap"]["properties"]["kind"]
    properties = {
        "apiVersion": dict(kind),
        "kind": dict(kind),
        **schema.get("properties", {}),
        "metadata": {"allOf": [{"$ref": prefix + meta}]} if prefix == V3_REF else {"$ref": prefix + meta},
    }
    group, version, name = gvk
    marks = [{"group": group, "version": version, "kind": name}]
    return {**schema, "type": "object", "properties": properties, "x-kubernetes-group-version-kind": marks}


def _parameter(name: str, v2: bool) -> Json:
    kind = {"type": _TYPES.get(name, "string")}
    parameter = {"name": name, "in": "query"}
    return {**parameter, **kind} if v2 else {**parameter, "schema": kind}


def _operation(kind: ResourceKind, method: str, action: str, v2: bool) -> Json:
    out: Json = {
        "parameters": [_parameter(name, v2) for name in _PARAMETERS[method]],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {
            "group": kind.group,
            "kind": kind.kind,
            "version": kind.version,
        },
    }
    media_types = [m for m in _BODIES.get(method, ()) if not (kind.custom and m == _STRATEGIC)]
    if media_types and not v2:
        out["requestBody"] = {"content": {media: {} for media in media_types}}
    elif media_types:
        out["consumes"] = media_types
    return out


def _paths(kind: ResourceKind, *, v2: bool) -> Json:
    """The paths of one resource: the list and the single object."""
    root = f"{kind.path}/namespaces/{{namespace}}" if kind.namespaced else kind.path
    listed: Json = {}
    if "list" in kind.verbs:
        listed["get"] = _operation(kind, "get", "list", v2)
    if "create" in kind.verbs:
        listed["post"] = _operation(kind, "post", "post", v2)
    single = {
        method: _operation(kind, method, _ACTIONS[method], v2) for method, verb in _VERBS.items() if verb in kind.verbs
    }
    out = {f"{root}/{kind.plural}": listed}
    if single:
        out[f"{root}/{kind.plural}/{{name}}"] = single
    return out


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class ForeignDocuments(NamedTuple):
    """The documents of other servers (JSON) by path (``apis/GROUP/VERSION``); empty where a server has none."""

    v3: Mapping[str, bytes] = {}
    v2: Mapping[str, bytes] = {}


_NOTHING_FOREIGN = ForeignDocuments()


class Documents:
    """The documents of one set of kinds.

    ``custom`` holds the raw ``openAPIV3Schema`` of each custom kind, ``foreign`` the documents of other servers, which
    take the place of the own ones.
    """

    def __init__(
        self,
        kinds: Iterable[ResourceKind],
        custom: Mapping[GroupVersionKind, Json] | None = None,
        foreign: ForeignDocuments = _NOTHING_FOREIGN,
    ) -> None:
        self._groups: dict[str, list[ResourceKind]] = {
            self._path(group, version): [] for group, versions in GROUPS.items() for version in versions
        }
        for kind in kinds:
            self._groups.setdefault(kind.path.removeprefix("/"), []).append(kind)
        self._custom = dict(custom or {})
        self._foreign = foreign
        self._groups |= {path: [] for path in foreign.v3}
        self._cache: dict[str, bytes] = {path: body for path, body in foreign.v3.items() if body}

    @staticmethod
    def _path(group: str, version: str) -> str:
        return f"apis/{group}/{version}" if group else f"api/{version}"

    def digest(self, path: str) -> str:
        """The hash of the document of ``apis/apps/v1`` or the like; empty where there is none."""
        foreign = self._foreign.v3.get(path)
        if foreign:
            return hashlib.sha256(foreign).hexdigest().upper()
        kinds = self._groups.get(path)
        if not kinds:
            return ""
        custom = [self._custom.get((kind.group, kind.version, kind.kind)) for kind in kinds]
        source = _bytes([INFO, [(kind.kind, kind.plural, kind.verbs) for kind in kinds], custom])
        return hashlib.sha256(source).hexdigest().upper()

    @cached_property
    def index(self) -> bytes:
        """The index of version 3."""
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={self.digest(path)}"}
            for path, kinds in sorted(self._groups.items())
            if kinds or path in self._cache
        }
        return _bytes({"paths": paths})

    def v3(self, path: str) -> bytes | None:
        """The document of a group version (``api/v1``, ``apis/apps/v1``), None where there is none."""
        kinds = self._groups.get(path)
        if path not in self._cache:
            if not kinds:
                return None
            document = {
                "openapi": "3.0.0",
                "info": INFO,
                "paths": {url: body for kind in kinds for url, body in _paths(kind, v2=False).items()},
                "components": {"schemas": self._schemas(kinds, V3_REF)},
            }
            self._cache[path] = _bytes(document)
        return self._cache[path]

    @cached_property
    def v2(self) -> bytes:
        """The document of version 2, as JSON."""
        return _bytes(self._v2)

    @cached_property
    def v2_protobuf(self) -> bytes:
        """The document of version 2, as protobuf."""
        return openapi_protobuf.encode(self._v2)

    @property
    def _v2(self) -> Json:
        kinds = [kind for group in self._groups.values() for kind in group]
        document: Json = {
            "swagger": "2.0",
            "info": INFO,
            "paths": {url: body for kind in kinds for url, body in _paths(kind, v2=True).items()},
            "definitions": self._schemas(kinds, V2_REF),
        }
        for path, body in sorted(self._foreign.v2.items()):
            if body:
                document = openapi_merge.merge(document, json.loads(body), path)
        return document

    def _schemas(self, kinds: Iterable[ResourceKind], prefix: str) -> Json:
        names, custom = ["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"], {}
        names.append("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
        for kind in kinds:
            gvk = (kind.group, kind.version, kind.kind)
            schema = self._custom.get(gvk)
            if schema is not None:
                custom[custom_name(gvk)] = custom_definition(gvk, schema, prefix)
            subresource_kinds = [(sub.group, sub.version, sub.kind) for sub in kind.subresources]
            for gvk_of_schema in (gvk, (kind.group, kind.version, f"{kind.kind}List"), *subresource_kinds):
                definition_name = data.names().get(gvk_of_schema)
                names += [definition_name] if definition_name else []
        return {**{name: definition(name, prefix) for name in reachable(names, data.definitions())}, **custom}
