"""Strategic merge patch: a merge patch that knows from the schema which lists merge, and by which key.

Directives inside the patch: ``$patch: delete|replace|merge`` in an object or list item, ``$retainKeys`` (fields
of an object that may stay), ``$deleteFromPrimitiveList/<list>``, and ``$setElementOrder/<list>`` (the order the
sender wants; items that only the server has keep their place between the others, as far as both orders allow).
The rules, including the order of a merged list, are those of apimachinery's ``strategicpatch``: a patch that
kubectl computed against its own idea of the object must land in the same place here.

Cost grows with the patch and with the lists that it touches; the rest is shared with the old document.
"""

from collections.abc import Callable, Sequence
from typing import Any

from podwire.embedded.apiserver.patch.order import ordered
from podwire.embedded.apiserver.schema.data import SchemaNode
from podwire.errors import ApiError

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"
_RETAIN = "$retainKeys"
_PATCH = "$patch"


def _bad(problem: str) -> ApiError:
    return ApiError(400, "BadRequest", problem)


def apply(doc: dict[str, Any], patch: dict[str, Any], schema: SchemaNode) -> dict[str, Any]:
    """The patched document; ``doc`` is left as it was.

    Raises: ApiError 400 for a patch that contradicts itself or misses a merge key.
    """
    if not isinstance(patch, dict):
        raise _bad("a strategic merge patch is an object")
    return _merge_map(doc, patch, schema)


def _merge_map(old: dict[str, Any], patch: dict[str, Any], schema: SchemaNode | None) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive == "replace":
        return {key: _clean(value) for key, value in patch.items() if key != _PATCH}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise _bad(f"Unknown patch type found: {directive} in map")
    out = _retain(old, patch)
    done = {_PATCH, _RETAIN}
    for key, order in patch.items():
        if key.startswith(_ORDER):
            field = key.removeprefix(_ORDER)
            done.update((key, field))
            _merge_ordered(out, field, patch, _child(schema, field), order)
    done.update(_delete_primitives(out, patch))
    for key, value in patch.items():
        if key not in done:
            _merge_field(out, key, value, _child(schema, key))
    return out


def _delete_primitives(out: dict[str, Any], patch: dict[str, Any]) -> list[str]:
    """Remove the plain values that the patch lists; returns the directives seen."""
    directives = [key for key in patch if key.startswith(_DELETE)]
    for key in directives:
        field = key.removeprefix(_DELETE)
        if isinstance(out.get(field), list):
            out[field] = [item for item in out[field] if item not in patch[key]]
    return directives


def _retain(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``old`` with only the keys that the patch's retain list names, if it has one."""
    keep = patch.get(_RETAIN)
    if keep is None:
        return dict(old)
    if not isinstance(keep, list):
        raise _bad(f"{_RETAIN} must be a list")
    for key, value in patch.items():
        if not key.startswith("$") and value is not None and key not in keep:
            raise _bad(f"{key} is in the patch but not in its {_RETAIN} list")
    return {key: value for key, value in old.items() if key in keep}


def _child(schema: SchemaNode | None, field: str) -> SchemaNode | None:
    return schema.child(field) if schema is not None else None


def _merge_field(out: dict[str, Any], key: str, value: Any, schema: SchemaNode | None) -> None:
    """Merge one field of the patch into ``out``."""
    old = out.get(key)
    if value is None:
        out.pop(key, None)
    elif isinstance(value, dict) and isinstance(old, dict):
        if value.get(_PATCH) == "delete":
            del out[key]
        elif schema is not None and "replace" in schema.patch_strategies:
            out[key] = _clean(value)
        else:
            out[key] = _merge_map(old, value, schema)
    elif isinstance(value, list) and isinstance(old, list) and schema is not None and schema.patch_merges:
        out[key] = _merge_list(old, value, schema)
    elif not (isinstance(value, dict) and value.get(_PATCH) == "delete"):
        out[key] = _clean(value)


def _clean(value: Any) -> Any:
    """A new value without directives and nulls, which mean nothing where there is no old value."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items() if item is not None and not _is_directive(key)}
    if isinstance(value, list):
        return [
            _clean(item) for item in value if not (isinstance(item, dict) and item.get(_PATCH) in ("delete", "replace"))
        ]
    return value


def _is_directive(key: str) -> bool:
    return key in (_PATCH, _RETAIN) or key.startswith((_ORDER, _DELETE))


def _merge_list(old: Sequence[Any], patch: Sequence[Any], schema: SchemaNode) -> list[Any]:
    merged, patch_items = _merge_items(old, patch, schema)
    return ordered(merged, patch_items, old, _identity(schema.merge_key, merged))


def _merge_items(old: Sequence[Any], patch: Sequence[Any], schema: SchemaNode) -> tuple[list[Any], Sequence[Any]]:
    """The merged items in no particular order, and the patch's items that order them."""
    if not any(isinstance(item, dict) for item in (*old, *patch)):
        merged = list(old)
        merged.extend(item for index, item in enumerate(patch) if item not in old and item not in patch[:index])
        return merged, patch
    key = schema.merge_key
    if not key:
        raise _bad("cannot merge lists without merge key")
    if any(item.get(_PATCH) == "replace" for item in patch if isinstance(item, dict)):
        return [_clean(item) for item in patch if item.get(_PATCH) != "replace"], patch
    merged = list(old)
    for item in patch:
        _merge_item(merged, item, key, schema.items)
    return merged, [item for item in patch if item.get(_PATCH) != "delete"]


def _merge_item(merged: list[Any], item: Any, key: str, schema: SchemaNode) -> None:
    """Merge one keyed item of the patch into the list."""
    if not isinstance(item, dict) or key not in item:
        raise _bad(f"map: {item} does not contain declared merge key: {key}")
    indexes = [index for index, old in enumerate(merged) if old.get(key) == item[key]]
    if item.get(_PATCH) == "delete":
        merged[:] = [old for old in merged if old.get(key) != item[key]]
    elif indexes:
        merged[indexes[0]] = _merge_map(merged[indexes[0]], item, schema)
    else:
        merged.append(_clean(item))


def _merge_ordered(
    out: dict[str, Any], field: str, patch: dict[str, Any], schema: SchemaNode | None, order: Any
) -> None:
    """Merge a list for which the patch also gives the order of its items."""
    if not isinstance(order, list):
        raise _bad(f"{_ORDER}{field} must be a list")
    change = patch.get(field)
    if field in patch and change is None:
        out.pop(field, None)
        return
    key = schema.merge_key if schema is not None else ""
    old = out.get(field)
    change = _check_order(field, change, order, key)
    if old is None and change is None:
        return
    if old is None:
        merged = _clean(change)
    elif change is None or schema is None:
        merged = list(old)
    else:
        merged, _ = _merge_items(old, change, schema)
    deleted = patch.get(_DELETE + field, ())
    merged = [item for item in merged if item not in deleted]
    out[field] = ordered(merged, order, old or (), _identity(key, merged))


def _check_order(field: str, change: Any, order: list[Any], key: str) -> list[Any] | None:
    """The list of the patch, which must agree with its order list."""
    if change is None:
        return None
    if not isinstance(change, list):
        raise _bad(f"{field} must be a list")
    identity = _identity(key, change)
    listed = {identity(item) for item in order}
    for item in change:
        deletes = isinstance(item, dict) and _PATCH in item
        if not deletes and identity(item) not in listed:
            problem = "the order in patch list doesn't match the"
            raise _bad(f"{problem} {_ORDER}{field} list: {item} is missing")
    return change


def _identity(key: str, items: Sequence[Any]) -> Callable[[Any], Any]:
    """The identity of an item: the value of its merge key, or the plain value itself."""

    def keyed(item: Any) -> Any:
        return plain(item.get(key)) if isinstance(item, dict) else plain(item)

    def plain(value: Any) -> Any:
        return id(value) if isinstance(value, dict | list) else value

    return keyed if key else plain
