"""Fields of an object that a step sets, as bodies of server-side apply, and their reverse. Pure.

A manager that applies a body gives up the fields of its earlier bodies that the new one lacks, and the API removes
them. So each body has the fields that the manager owns already (:func:`owned`), with those of the step
(:func:`merged`).

Items of lists that have a ``name``, such as containers and volumes, are merged by it, as the API does. A field with
None is removed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
_DELETED = "$patch"
TOOLS = ("kubectl", "kubeadm", "helm", "Helm", "before-first-apply", "podwire", "ancient-changes", "kustomize")
"""Managers whose name begins like this are tools of people: they write once, when a person calls them."""


def owned(live: Json, manager: str) -> Json:
    """The fields of an object that a manager has applied, with their values of now."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields = _extract(live, entry.get("fieldsV1") or {})
            return fields if isinstance(fields, dict) else {}
    return {}


def _extract(value: Any, node: Mapping[str, Any]) -> Any:
    steps = {key: child for key, child in node.items() if key != "."}
    if not steps:
        return value
    if isinstance(value, list):
        return [item for key, child in steps.items() for item in _items(value, key, child)]
    if not isinstance(value, dict):
        return value
    names = {key.removeprefix("f:"): child for key, child in steps.items() if key.startswith("f:")}
    return {name: _extract(value[name], child) for name, child in names.items() if name in value}


def _items(value: Sequence[Any], key: str, child: Mapping[str, Any]) -> list[Any]:
    mark, _, text = key.partition(":")
    wanted_key = json.loads(text)
    if mark == "v":
        return [item for item in value if item == wanted_key]
    if mark != "k":
        return []
    matching = [item for item in value if isinstance(item, dict) and wanted_key.items() <= item.items()]
    only_keys = not [step for step in child if step != "."]
    return [wanted_key if only_keys else wanted_key | _extract(item, child) for item in matching]


def merged(base: Any, patch: Any) -> Any:
    """A value with the fields of a patch."""
    if isinstance(patch, dict) and isinstance(base, dict):
        result = dict(base)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(base.get(key), value)
        return result
    if isinstance(patch, dict):
        return merged({}, patch)
    if _is_keyed(patch) and (base is None or _is_keyed(base)):
        return _merged_items(base or [], patch)
    return patch


def _merged_items(base: Sequence[Json], patch: Sequence[Json]) -> list[Json]:
    changes = {item["name"]: item for item in patch}
    present = {item["name"] for item in base}
    result = [merged(item, changes.get(item["name"], {})) for item in base if not _is_deleted(changes, item["name"])]
    return result + [merged({}, item) for item in patch if item["name"] not in present and _DELETED not in item]


def _is_deleted(changes: Mapping[str, Json], name: str) -> bool:
    return changes.get(name, {}).get(_DELETED) == "delete"


def reverse(live: Any, patch: Any) -> Any:
    """The patch that takes a patch back: the values of now at its fields, None where there is none."""
    if isinstance(patch, dict):
        inner = live if isinstance(live, dict) else {}
        return {key: reverse(inner.get(key), value) for key, value in patch.items()} if live is not None else None
    if _is_keyed(patch) and (live is None or _is_keyed(live)):
        present = {item["name"]: item for item in live or ()}
        return [
            {"name": name} | (reverse(present[name], item) if name in present else {_DELETED: "delete"})
            for name, item in ((item["name"], item) for item in patch)
        ]
    return live


def holds(live: Any, patch: Any) -> bool:
    """Whether an object has all values of a patch."""
    if isinstance(patch, dict):
        inner = live if isinstance(live, dict) else {}
        return all(holds(inner.get(key), value) for key, value in patch.items())
    if _is_keyed(patch) and (not live or _is_keyed(live)):
        present = {item["name"]: item for item in live or ()}
        return all(
            item["name"] not in present if _DELETED in item else holds(present.get(item["name"]), item)
            for item in patch
        )
    return bool(live == patch)


def _is_keyed(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(i, dict) and "name" in i for i in value)


def is_person(manager: str) -> bool:
    """Whether a field manager is a tool of a person, and not a program that writes again and again."""
    return manager.startswith(TOOLS)
