"""Puts OpenAPI documents of version 2 of other servers into that of this server.

Taken over are the paths of one group and version, and the definitions that they refer to. A definition whose name
stands for another one here already gets the next free name ``NAME_v2``, ``NAME_v3``, ...
Source: ``k8s.io/kube-openapi/pkg/aggregator``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

_REF = "#/definitions/"


def merge(own: Json, other: Json, path: str) -> Json:
    """``own`` with the paths below ``/apis/GROUP/VERSION`` (``path``, without the first slash) of ``other``."""
    prefix = f"/{path}/"
    paths = {url: body for url, body in (other.get("paths") or {}).items() if f"{url}/".startswith(prefix)}
    known: Mapping[str, Any] = other.get("definitions") or {}
    group, _, version = path.removeprefix("apis/").partition("/")
    roots = [name for name, body in known.items() if _has_kind(body, group, version)]
    wanted = _reachable([*roots, *_references(paths)], known)
    definitions: Json = dict(own.get("definitions") or {})
    renamed = {name: _free_name(name, known[name], definitions) for name in wanted}
    for name in wanted:
        definitions[renamed[name]] = _renamed(known[name], renamed)
    own_paths = {url: body for url, body in (own.get("paths") or {}).items() if not f"{url}/".startswith(prefix)}
    return {**own, "paths": {**own_paths, **_renamed(paths, renamed)}, "definitions": definitions}


def _has_kind(body: Any, group: str, version: str) -> bool:
    marks = body.get("x-kubernetes-group-version-kind") if isinstance(body, dict) else None
    return any(
        isinstance(mark, dict) and (mark.get("group"), mark.get("version")) == (group, version) for mark in marks or ()
    )


def _references(node: Any) -> Iterable[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str) and target.startswith(_REF):
            yield target.removeprefix(_REF)
        for value in node.values():
            yield from _references(value)


def _reachable(names: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    reached: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name in known and name not in reached:
            reached.add(name)
            queue.extend(_references(known[name]))
    return sorted(reached)


def _free_name(name: str, body: Any, taken: Mapping[str, Any]) -> str:
    free, number = name, 2
    while free in taken and taken[free] != body:
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
