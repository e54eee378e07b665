"""From OpenAPI version 2 to version 3, for extension API servers that publish version 2 alone.

Definitions become schemas of the components, the body of an operation becomes its ``requestBody``, and the types of
parameters and headers become schemas. Extensions (``x-kubernetes-...``) stay. Security definitions are left out, since
clients of Kubernetes use their kubeconfig. Nodes that are not valid in version 2 are left out, too.
Sources: OpenAPI 2.0 and 3.0.3, ``k8s.io/kube-openapi/pkg/openapiconv``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_V2_REF = "#/definitions/"
_V3_REF = "#/components/schemas/"
_PARAMETER_FIELDS = ("name", "in", "description", "required", "allowEmptyValue")
_NOT_OF_SCHEMAS = (*_PARAMETER_FIELDS, "collectionFormat")
_OPERATION_FIELDS = ("tags", "summary", "description", "externalDocs", "operationId", "deprecated")
_JSON = ("application/json",)
_INT_OR_STRING = {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
_NAMES = ("properties", "definitions", "patternProperties")
"""Fields of a schema that hold schemas by name."""


def to_v3(document: Json) -> Json:
    """The document in version 3.

    :func:`podwire.embedded.apiserver.openapi_merge.select_paths` must have replaced references to parameters.
    Operations without ``consumes`` or ``produces`` get those of the document.
    """
    paths, definitions = _mapping(document.get("paths")), _mapping(document.get("definitions"))
    out: Json = {
        "openapi": "3.0.0",
        "info": document.get("info") or {"title": "Kubernetes", "version": "unversioned"},
        "paths": {url: _path(item, document) for url, item in paths.items() if isinstance(item, dict)},
    }
    schemas = {name: _schema(body) for name, body in definitions.items() if isinstance(body, dict)}
    return {**out, "components": {"schemas": schemas}} if schemas else out


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _extensions(node: Json) -> Json:
    return {key: value for key, value in node.items() if key.startswith("x-")}


def _path(item: Json, document: Json) -> Json:
    shared = list(_parameters(item))
    out: Json = _extensions(item)
    parameters = [_parameter(parameter) for parameter in shared if parameter.get("in") not in ("body", "formData")]
    if parameters:
        out["parameters"] = parameters
    for method in _METHODS:
        operation = item.get(method)
        if isinstance(operation, dict):
            out[method] = _operation(operation, shared, document)
    return out


def _parameters(node: Json) -> Iterable[Json]:
    """The parameters of a path or an operation."""
    return (
        parameter
        for parameter in _listed(node.get("parameters"))
        if isinstance(parameter, dict) and "name" in parameter
    )


def _operation(operation: Json, shared: list[Json], document: Json) -> Json:
    own = list(_parameters(operation))
    out = {field: operation[field] for field in _OPERATION_FIELDS if field in operation} | _extensions(operation)
    parameters = [_parameter(parameter) for parameter in own if parameter.get("in") not in ("body", "formData")]
    if parameters:
        out["parameters"] = parameters
    bodies = [parameter for parameter in (*own, *shared) if parameter.get("in") == "body"]
    if bodies:
        out["requestBody"] = _body(bodies[0], _media_types("consumes", operation, document))
    produced = _media_types("produces", operation, document)
    responses = _mapping(operation.get("responses"))
    out["responses"] = {
        code: _response(response, produced) for code, response in responses.items() if isinstance(response, dict)
    }
    return out


def _media_types(field: str, operation: Json, document: Json) -> list[str]:
    media_types = _listed(operation.get(field)) or _listed(document.get(field)) or _JSON
    return [media_type for media_type in media_types if isinstance(media_type, str)]


def _parameter(parameter: Json) -> Json:
    out = {field: parameter[field] for field in _PARAMETER_FIELDS if field in parameter}
    return {**out, **_extensions(parameter), "schema": _value_schema(parameter)}


def _value_schema(parameter: Json) -> Json:
    """The schema of a parameter or header, whose type is on the same level as its other fields."""
    fields = {key: value for key, value in parameter.items() if key not in _NOT_OF_SCHEMAS and not key.startswith("x-")}
    return _schema(fields)


def _body(parameter: Json, media_types: list[str]) -> Json:
    schema = _schema(_mapping(parameter.get("schema")))
    out: Json = {field: parameter[field] for field in ("description", "required") if field in parameter}
    return {**out, "content": {media_type: {"schema": schema} for media_type in media_types}}


def _response(response: Json, media_types: list[str]) -> Json:
    out: Json = {"description": response.get("description") or "", **_extensions(response)}
    if isinstance(response.get("schema"), dict):
        schema = _schema(response["schema"])
        out["content"] = {media_type: {"schema": schema} for media_type in media_types}
    headers = _mapping(response.get("headers"))
    if headers:
        out["headers"] = {
            name: {"description": header.get("description") or "", "schema": _value_schema(header)}
            for name, header in headers.items()
            if isinstance(header, dict)
        }
    return out


def _schema(node: Mapping[str, Any]) -> Json:
    """A schema of version 3; a reference on the same level as other fields is wrapped, since it hides them."""
    if node.get("format") == "int-or-string":
        other_fields = {key: value for key, value in node.items() if key not in ("type", "format")}
        return {**other_fields, **_INT_OR_STRING}
    out: Json = {}
    for key, value in node.items():
        if key in _NAMES and isinstance(value, dict):
            out[key] = {name: _schema(sub) if isinstance(sub, dict) else sub for name, sub in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            out[key] = _schema(value)
        elif key in ("allOf", "anyOf", "oneOf") and isinstance(value, list):
            out[key] = [_schema(sub) if isinstance(sub, dict) else sub for sub in value]
        elif key != "$ref":
            out[key] = value
    target = node.get("$ref")
    if not isinstance(target, str):
        return out
    reference = {"$ref": _V3_REF + target.removeprefix(_V2_REF)}
    return {**out, "allOf": [reference]} if out else reference
