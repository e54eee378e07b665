"""Puts OpenAPI documents of version 2 of other servers into that of this server.

The paths of one group and version, and the definitions that they refer to, are copied. When this server already has
another definition with the same name, the copy gets the next free name ``NAME_v2``, ``NAME_v3``, ...
Source: ``k8s.io/kube-openapi/pkg/aggregator``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from podwire.embedded.apiserver.openapi_references import reachable, references
from podwire.embedded.apiserver.openapi_shape import is_definition, is_path

Json = dict[str, Any]

_REF = "#/definitions/"
_PARAMETER_REF = "#/parameters/"
_HEAD_FIELDS = ("info", "consumes", "produces")


def select_paths(document: Json, path: str) -> Json:
    """The paths below ``/apis/GROUP/VERSION`` (``path``, without the first slash), and the definitions that they need.

    References to parameters are replaced by the parameters. Invalid paths and definitions are left out.
    """
    paths, definitions, parameters = (_mapping(document, field) for field in ("paths", "definitions", "parameters"))
    filled = ((url, _with_parameters(body, parameters)) for url, body in _below(paths, path))
    own = {url: body for url, body in filled if is_path(body)}
    definitions = {name: body for name, body in definitions.items() if is_definition(body)}
    group, _, version = path.removeprefix("apis/").partition("/")
    roots = [name for name, body in definitions.items() if _has_kind(body, group, version)]
    needed = reachable([*roots, *references(own, _REF)], definitions, _REF)
    document_head = {field: document[field] for field in _HEAD_FIELDS if field in document}
    return {**document_head, "paths": own, "definitions": {name: definitions[name] for name in needed}}


def _mapping(document: Json, field: str) -> Mapping[str, Any]:
    value = document.get(field)
    return value if isinstance(value, dict) else {}


def _with_parameters(node: Any, parameters: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_with_parameters(item, parameters) for item in node]
    if not isinstance(node, dict):
        return node
    target = node.get("$ref")
    if isinstance(target, str) and target.startswith(_PARAMETER_REF):
        return parameters.get(target.removeprefix(_PARAMETER_REF), {})
    return {key: _with_parameters(value, parameters) for key, value in node.items()}


def merge(own: Json, other: Json, path: str) -> Json:
    """``own`` with the paths and definitions of ``other``, which is the part for ``path`` of another document."""
    known: Mapping[str, Any] = other["definitions"]
    definitions: Json = dict(own.get("definitions") or {})
    renamed = {name: _free_name(name, body, definitions) for name, body in known.items()}
    for name, body in known.items():
        definitions[renamed[name]] = _renamed(body, renamed)
    replaced = dict(_below(own["paths"], path))
    paths = {url: body for url, body in own["paths"].items() if url not in replaced}
    return {**own, "paths": {**paths, **_renamed(other["paths"], renamed)}, "definitions": definitions}


def _below(paths: Mapping[str, Any], path: str) -> Iterable[tuple[str, Any]]:
    prefix = f"/{path}/"
    return ((url, body) for url, body in paths.items() if f"{url}/".startswith(prefix))


def _has_kind(body: Any, group: str, version: str) -> bool:
    marks = body.get("x-kubernetes-group-version-kind") if isinstance(body, dict) else None
    return isinstance(marks, list) and any(
        isinstance(mark, dict) and (mark.get("group"), mark.get("version")) == (group, version) for mark in marks
    )


def _free_name(name: str, body: Any, definitions: Mapping[str, Any]) -> str:
    free, number = name, 2
    while free in definitions and definitions[free] != body:
        free, number = f"{name}_v{number}", number + 1
    return free


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_renamed(item, names) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _renamed(value, names) for key, value in node.items()}
    target = node.get("$ref")
    if isinstance(target, str) and target.startswith(_REF):
        name = target.removeprefix(_REF)
        out["$ref"] = _REF + names.get(name, name)
    return out
