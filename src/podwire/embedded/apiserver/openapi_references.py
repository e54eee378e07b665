"""References between the definitions of an OpenAPI document."""

from collections.abc import Iterable, Mapping
from typing import Any


def references(node: Any, prefix: str = "") -> Iterable[str]:
    """The names behind ``prefix`` that a part of a document refers to, in its order."""
    if isinstance(node, list):
        for item in node:
            yield from references(item, prefix)
    elif isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str) and target.startswith(prefix):
            yield target.removeprefix(prefix)
        for value in node.values():
            yield from references(value, prefix)


def reachable(names: Iterable[str], known: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The named definitions and all that they refer to, sorted; names that are not ``known`` are left out."""
    reached: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name in known and name not in reached:
            reached.add(name)
            queue.extend(references(known[name], prefix))
    return sorted(reached)
