"""Sets of field paths, in the form of ``FieldsV1``: a tree of dictionaries.

A key is one step of a path: ``f:name`` a field, ``k:{...}`` a list item by its key fields, ``v:...`` an item of
a set by its value. A node that is itself in the set holds ``.``. In the API's form a leaf that is in the set is
an empty dictionary; :func:`load` and :func:`dump` convert, everything between has the ``.`` written out.

All operations leave their arguments alone and share subtrees with them. Cost is the size of the smaller set,
or of the changed part.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Node = dict[str, Any]

MEMBER = "."
LEAF: Mapping[str, Any] = {MEMBER: {}}


def load(raw: Mapping[str, Any]) -> Node:
    """The set of a ``fieldsV1`` value."""
    return {key: load(sub) if key != MEMBER else {} for key, sub in raw.items()} or dict(LEAF)


def dump(node: Node) -> Node:
    """The ``fieldsV1`` value of a set, keys sorted."""
    if node == LEAF:
        return {}
    return {key: dump(node[key]) if key != MEMBER else {} for key in sorted(node)}


def union(left: Node, right: Node) -> Node:
    """Paths in either set."""
    if not left or not right:
        return left or right
    out = dict(left)
    for key, sub in right.items():
        mine = out.get(key)
        out[key] = sub if mine is None or key == MEMBER else union(mine, sub)
    return out


def difference(left: Node, right: Node) -> Node:
    """Paths of ``left`` that are not in ``right``."""
    if not left or not right:
        return left
    out: Node = {}
    for key, sub in left.items():
        theirs = right.get(key)
        if theirs is None:
            out[key] = sub
        elif key != MEMBER:
            rest = difference(sub, theirs)
            if rest:
                out[key] = rest
    return out


def intersection(left: Node, right: Node) -> Node:
    """Paths in both sets."""
    out: Node = {}
    for key, sub in left.items():
        theirs = right.get(key)
        if theirs is None:
            continue
        if key == MEMBER:
            out[key] = {}
            continue
        both = intersection(sub, theirs)
        if both:
            out[key] = both
    return out


def without(node: Node, *paths: tuple[str, ...]) -> Node:
    """The set without the subtrees at these paths."""
    for path in paths:
        node = _without(node, path)
    return node


def _without(node: Node, path: tuple[str, ...]) -> Node:
    step = path[0]
    if step not in node:
        return node
    out = dict(node)
    rest = _without(node[step], path[1:]) if len(path) > 1 else {}
    if rest:
        out[step] = rest
    else:
        del out[step]
    return out


def field_step(name: str) -> str:
    """The step to a field."""
    return f"f:{name}"


def key_step(keys: Mapping[str, Any]) -> str:
    """The step to a list item by its key fields."""
    return "k:" + msgspec.json.encode(keys, order="sorted").decode()


def value_step(value: Any) -> str:
    """The step to an item of a set."""
    return "v:" + msgspec.json.encode(value, order="sorted").decode()


def render_step(step: str) -> str:
    """One step as messages show it: ``.name``, ``[name="x"]``, ``[="v"]``, ``[0]``."""
    kind, _, rest = step.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    if kind == "k":
        keys = json.loads(rest)
        shown = (f"{key}={json.dumps(keys[key], ensure_ascii=False)}" for key in sorted(keys))
        return "[" + ",".join(shown) + "]"
    return f"[{rest}]"


def paths(node: Node, prefix: str = "") -> Iterator[str]:
    """Every path in the set, as text: those that end at a level before those that go deeper."""
    below = [key for key in sorted(node) if key != MEMBER]
    for key in below:
        if MEMBER in node[key]:
            yield prefix + render_step(key)
    for key in below:
        yield from paths(node[key], prefix + render_step(key))
