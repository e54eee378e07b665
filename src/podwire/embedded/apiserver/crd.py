"""Custom objects: pruning, defaulting and validation by the structural schema of their definition.

The order on a write is that of Kubernetes: remove fields that the schema does not have, remove nulls that a default
replaces, fill in defaults, then validate. A structural schema defines the type of every field, so each step is one pass
over the object; ``allOf``, ``anyOf``, ``oneOf`` and ``not`` only constrain and never add fields.

Versions of a kind share their objects; with conversion ``None`` only ``apiVersion`` differs, and each version
prunes and defaults by its own schema. Sources: ``apiextensions-apiserver/pkg/apiserver/schema``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from podwire.embedded.apiserver.cel import rules
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.schema.data import object_meta
from podwire.embedded.apiserver.tables.jsonpath import find
from podwire.embedded.apiserver.validate import causes, fields, names, structural
from podwire.embedded.apiserver.validate.conversion import check_conversion
from podwire.embedded.apiserver.validate.junctors import check_constraints
from podwire.embedded.apiserver.validate.selectable import check_selectable

Json = dict[str, Any]

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_COMMON = ("apiVersion", "kind", "metadata")
_IMMUTABLE = "field is immutable"
_MISSING_VERSION = (
    "missing from spec.versions; {0} was previously a storage version, and must remain in spec.versions until a "
    "storage migration ensures no data remains persisted in {0} and removes {0} from status.storedVersions"
)
_BLOCKING = ("FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid")
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


class Pruned(NamedTuple):
    """The value without unknown fields, and the paths of these fields in their order."""

    obj: Any
    unknown: list[str]


def _prune(value: Any, schema: Json, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        return [_prune(item, items, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties: Json = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    keep = bool(schema.get(_PRESERVE)) or additional is True
    common = _COMMON if schema.get(_EMBEDDED) else ()
    out: Json = {}
    for name, item in value.items():
        where = f"{path}.{name}" if path else name
        sub = properties.get(name, additional)
        if name == "metadata" and common and isinstance(item, dict):
            out[name] = _prune_metadata(item, where, unknown)
        elif isinstance(sub, dict):
            out[name] = _prune(item, sub, where, unknown)
        elif keep or name in common:
            out[name] = item
        else:
            unknown.append(where)
    return out


def _prune_metadata(meta: Json, path: str, unknown: list[str]) -> Json:
    """The metadata of an object inside another one, without the fields that no metadata has."""
    known_fields = object_meta().properties
    unknown += [f"{path}.{name}" for name in meta if name not in known_fields]
    return {name: value for name, value in meta.items() if name in known_fields}


def prune(obj: Json, schema: Json) -> Pruned:
    """The object without the fields its schema does not have; apiVersion, kind and metadata stay."""
    unknown: list[str] = []
    body = {key: value for key, value in obj.items() if key not in _COMMON}
    pruned = _prune(body, schema, "", unknown)
    common = {key: obj[key] for key in _COMMON if key in obj}
    return Pruned({**common, **pruned}, unknown)


def decode(obj: Json, schema: Json, kind: ResourceKind) -> fields.Decoded:
    """A custom object as the API understands it: metadata by its types, the rest pruned by the schema.

    Raises: ApiError 400 for metadata of the wrong type.
    """
    pruned = prune(obj, schema)
    meta = fields.decode_metadata(obj.get("metadata") or {}, kind)
    return fields.Decoded({**pruned.obj, "metadata": meta.obj}, [*meta.unknown, *pruned.unknown])


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def fill(value: Any, schema: Json) -> Any:
    """The value with the defaults of its schema; the argument is left as it was."""
    if isinstance(value, list):
        items = schema.get("items")
        return [fill(item, items) for item in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    properties: Mapping[str, Json] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    out = dict(value)
    for name, sub in properties.items():
        absent = name not in out or (out[name] is None and not sub.get("nullable"))
        if absent and "default" in sub:
            out[name] = _copy(sub["default"])
    for name, item in out.items():
        schema_of_item = properties.get(name, additional)
        if isinstance(schema_of_item, dict) and isinstance(item, dict | list):
            out[name] = fill(item, schema_of_item)
    return out


def check(obj: Json, schema: Json) -> list[Cause]:
    """Every field of a custom object that its schema refuses; metadata is checked elsewhere."""
    body = {key: value for key, value in obj.items() if key not in _COMMON}
    constrained = {key: value for key, value in schema.items() if key != "required"}
    required = [name for name in schema.get("required") or () if name not in _COMMON]
    return structural.check(body, {**constrained, "required": required, "type": "object"})


def check_rules(new: Json, old: Json | None, tree: rules.RuleTree, wrong: Iterable[Cause]) -> list[Cause]:
    """Every rule that a custom object breaks. Rules are not evaluated when ``wrong`` has a mistake like a wrong
    type."""
    if any(cause.reason in _BLOCKING for cause in wrong):
        return [Cause("<nil>", "FieldValueInvalid", f"Invalid value: null: {_NOT_CHECKED}")]
    return rules.check(tree, new, old)


# -- scale


def read_scale(obj: Json, scale: Json) -> tuple[int, int, str]:
    """Wanted replicas, actual replicas and selector of a custom object, by its ``scale`` subresource."""

    def number(field: str) -> int:
        values = find(scale.get(field) or "", obj) if scale.get(field) else []
        return values[0] if values and isinstance(values[0], int) else 0

    path = scale.get("labelSelectorPath")
    selector = find(path, obj) if path else []
    text = selector[0] if selector and isinstance(selector[0], str) else ""
    return number("specReplicasPath"), number("statusReplicasPath"), text


def write_scale(obj: Json, scale: Json, replicas: int) -> Json:
    """The custom object with the wanted replicas set; the argument is left as it was."""
    steps = [step for step in (scale.get("specReplicasPath") or "").split(".") if step]
    out = dict(obj)
    node = out
    for step in steps[:-1]:
        child = node.get(step)
        node[step] = dict(child) if isinstance(child, dict) else {}
        node = node[step]
    if steps:
        node[steps[-1]] = replicas
    return out


# -- definitions


def _check_node(schema: Json, path: str, noun: str = "object fields") -> Iterator[Cause]:
    """The reasons why a schema is not structural; ``noun`` names the values that the schema describes."""
    typed = schema.get("type") or schema.get("x-kubernetes-int-or-string") or schema.get(_PRESERVE)
    if not typed:
        yield causes.required(f"{path}.type", f"must not be empty for specified {noun}")
    if schema.get("$ref"):
        yield causes.forbidden(f"{path}.$ref", "$ref is not supported")
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield causes.forbidden(f"{path}.uniqueItems", detail)
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield causes.required(f"{path}.items", "must be specified")
    if schema.get("properties") and schema.get("additionalProperties"):
        detail = "additionalProperties and properties are mutual exclusive"
        yield causes.forbidden(f"{path}.additionalProperties", detail)
    yield from check_constraints(schema, path)
    yield from _check_list(schema, path)
    if "default" in schema:
        invalid_fields = structural.check(schema["default"], schema, f"{path}.default")
        yield from (causes.invalid(cause.field, schema["default"], cause.message) for cause in invalid_fields)
    for name, sub in (schema.get("properties") or {}).items():
        yield from _check_node(sub, f"{path}.properties[{name}]")
    for field in ("items", "additionalProperties"):
        if isinstance(schema.get(field), dict):
            noun = "array items" if field == "items" else "object fields"
            yield from _check_node(schema[field], f"{path}.{field}", noun)


def _check_list(schema: Json, path: str) -> Iterator[Cause]:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
    if kind is not None and kind not in ("atomic", "map", "set"):
        yield causes.unsupported(f"{path}.x-kubernetes-list-type", kind, ("atomic", "map", "set"))
    if kind == "map" and not keys:
        detail = "must not be empty if x-kubernetes-list-type is map"
        yield causes.required(f"{path}.x-kubernetes-list-map-keys", detail)
    known = (schema.get("items") or {}).get("properties") or {}
    for index, name in enumerate(keys or ()):
        if name not in known:
            detail = "entries must all be names of item properties"
            yield causes.invalid(f"{path}.x-kubernetes-list-map-keys[{index}]", name, detail)


def check_schema(schema: Json, path: str) -> list[Cause]:
    """The reasons why a definition's schema, at ``path``, is not structural."""
    problems = []
    if schema.get("type") != "object":
        kind = schema.get("type") or ""
        text = "must be object at the root"
        problems.append(
            causes.invalid(f"{path}.type", kind, text)
            if kind
            else causes.required(f"{path}.type", "must not be empty at the root")
        )
        schema = {**schema, "type": "object"}
    return problems + list(_check_node(schema, path))


def _check_group(group: str) -> Iterator[Cause]:
    if problem := names.subdomain(group):
        yield causes.invalid("spec.group", group, problem)
    elif "." not in group:
        yield causes.invalid("spec.group", group, "should be a domain with at least one dot")


def _check_names(spec: Json) -> Iterator[Cause]:
    declared: Json = spec.get("names") or {}
    if spec.get("group"):
        yield from _check_group(spec["group"])
    for field in ("plural", "singular"):
        if declared.get(field) and (problem := names.label_1035(declared[field])):
            yield causes.invalid(f"spec.names.{field}", declared[field], problem)
    for field in ("kind", "listKind"):
        if declared.get(field) and (problem := names.label_1035(declared[field].lower())):
            detail = f"may have mixed case, but should otherwise match: {problem}"
            yield causes.invalid(f"spec.names.{field}", declared[field], detail)
    if declared.get("listKind") and declared["listKind"] == declared.get("kind"):
        yield causes.invalid("spec.names.listKind", declared["listKind"], "kind and listKind may not be the same")
    for index, text in enumerate(declared.get("shortNames") or ()):
        if problem := names.label_1035(text):
            yield causes.invalid(f"spec.names.shortNames[{index}]", text, problem)


def _check_columns(columns: Any, path: str) -> Iterator[Cause]:
    kinds = ("boolean", "date", "integer", "number", "string")
    for index, column in enumerate(columns or ()):
        where = f"{path}[{index}]"
        for field in ("name", "jsonPath"):
            if not column.get(field):
                yield causes.required(f"{where}.{field}")
        if column.get("type") not in kinds:
            yield causes.unsupported(f"{where}.type", column.get("type") or "", kinds)
        try:
            find(column.get("jsonPath") or "", {})
        except ValueError as failure:
            yield causes.invalid(f"{where}.jsonPath", column["jsonPath"], str(failure))


def _check_version(version: Json, path: str) -> Iterator[Cause]:
    name = version.get("name")
    if name and (problem := names.label_1035(name)):
        yield causes.invalid(f"{path}.name", name, problem)
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if isinstance(schema, dict):
        invalid_fields = check_schema(schema, f"{path}.schema.openAPIV3Schema")
        yield from invalid_fields or rules.problems(schema, f"{path}.schema.openAPIV3Schema")
    yield from _check_columns(version.get("additionalPrinterColumns"), f"{path}.additionalPrinterColumns")
    yield from check_selectable(version.get("selectableFields"), schema, f"{path}.selectableFields")
    scale = (version.get("subresources") or {}).get("scale")
    for field, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        if scale is None:
            return
        text = scale.get(field) or ""
        if not text:
            yield causes.required(f"{path}.subresources.scale.{field}")
        elif not text.startswith(root):
            detail = f"should be a json path under {root[:-1]}"
            yield causes.invalid(f"{path}.subresources.scale.{field}", text, detail)


def check_definition(new: Json, old: Json | None) -> list[Cause]:
    """The problems of the names, schemas, columns and subresources of a definition, and of its changes.

    :mod:`podwire.embedded.apiserver.customresources` checks required fields, the storage version and the name.
    """
    spec: Json = new.get("spec") or {}
    problems = list(_check_names(spec))
    names_seen: set[str] = set()
    for index, version in enumerate(spec.get("versions") or ()):
        path, name = f"spec.versions[{index}]", version.get("name") or ""
        if name in names_seen:
            problems.append(causes.duplicate(f"{path}.name", name))
        names_seen.add(name)
        problems += _check_version(version, path)
    if spec.get("preserveUnknownFields"):
        detail = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        problems.append(causes.invalid("spec.preserveUnknownFields", True, detail))
    problems += check_conversion(spec.get("conversion") or {})
    for index, name in enumerate((new.get("status") or {}).get("storedVersions") or ()):
        if name not in names_seen:
            path = f"status.storedVersions[{index}]"
            problems.append(causes.invalid(path, name, _MISSING_VERSION.format(name)))
    return problems + list(_check_changes(spec, old.get("spec") or {}) if old is not None else ())


def _check_changes(spec: Json, was: Json) -> Iterator[Cause]:
    for field in ("group", "scope"):
        if spec.get(field) != was.get(field):
            yield causes.invalid(f"spec.{field}", spec.get(field), _IMMUTABLE)
    for field in ("plural", "kind"):
        now, then = (part.get("names", {}).get(field) for part in (spec, was))
        if now != then:
            yield causes.invalid(f"spec.names.{field}", now, _IMMUTABLE)
