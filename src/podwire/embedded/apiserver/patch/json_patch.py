"""JSON patch: RFC 6902, with JSON pointers of RFC 6901.

Operations apply in order to a copy; the first that fails discards all. An operation that does not apply is
the client's error 422, a patch that is not a list of operations is 400, as in Kubernetes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from podwire.errors import ApiError, Invalid

_LIMIT = 10_000
"""More operations than this are refused, as by the API server of Kubernetes."""


def _fails(operation: Any, problem: str) -> Invalid:
    name = operation.get("op", "?") if isinstance(operation, dict) else "?"
    message = "the server rejected our request due to an error in our request"
    return Invalid(422, "Invalid", f"{message}: {name} operation does not apply: {problem}")


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _tokens(operation: Any, field: str = "path") -> list[str]:
    pointer = operation.get(field)
    if not isinstance(pointer, str):
        raise _fails(operation, f"{field} is missing")
    if pointer and not pointer.startswith("/"):
        raise _fails(operation, f"{field} {pointer} does not start with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _index(operation: Any, items: list[Any], token: str, *, end: bool) -> int:
    """The list position a token names; with ``end`` also the place after the last item."""
    if token == "-" and end:
        return len(items)
    if not (token.isascii() and token.isdigit()) or (token != "0" and token.startswith("0")):
        raise _fails(operation, f"{token} is not an index")
    index = int(token)
    if index > len(items) or (index == len(items) and not end):
        raise _fails(operation, f"index {token} is out of bounds")
    return index


def _step(operation: Any, node: Any, token: str) -> Any:
    if isinstance(node, dict) and token in node:
        return node[token]
    if isinstance(node, list):
        return node[_index(operation, node, token, end=False)]
    raise _fails(operation, f"doc is missing path: {operation.get('path')}: missing value")


def _get(operation: Any, doc: Any, tokens: Sequence[str]) -> Any:
    for token in tokens:
        doc = _step(operation, doc, token)
    return doc


def _parent(operation: Any, doc: Any, tokens: Sequence[str]) -> Any:
    parent = _get(operation, doc, tokens[:-1])
    if not isinstance(parent, dict | list):
        raise _fails(operation, f"doc is missing path: {operation.get('path')}: missing value")
    return parent


def _value(operation: Any) -> Any:
    if "value" not in operation:
        raise _fails(operation, "value is missing")
    return _copy(operation["value"])


def _put(operation: Any, doc: Any, tokens: Sequence[str], value: Any) -> Any:
    if not tokens:
        return value
    parent = _parent(operation, doc, tokens)
    if isinstance(parent, dict):
        parent[tokens[-1]] = value
    else:
        parent.insert(_index(operation, parent, tokens[-1], end=True), value)
    return doc


def _add(operation: Any, doc: Any) -> Any:
    return _put(operation, doc, _tokens(operation), _value(operation))


def _take(operation: Any, doc: Any, tokens: Sequence[str]) -> Any:
    """Remove and return what stands at a pointer."""
    if not tokens:
        raise _fails(operation, "the whole document cannot be removed")
    parent = _parent(operation, doc, tokens)
    if isinstance(parent, dict):
        if tokens[-1] not in parent:
            raise _fails(operation, f"Unable to remove nonexistent key: {tokens[-1]}: missing value")
        return parent.pop(tokens[-1])
    return parent.pop(_index(operation, parent, tokens[-1], end=False))


def _remove(operation: Any, doc: Any) -> Any:
    _take(operation, doc, _tokens(operation))
    return doc


def _replace(operation: Any, doc: Any) -> Any:
    tokens = _tokens(operation)
    _get(operation, doc, tokens)
    value = _value(operation)
    if not tokens:
        return value
    parent = _parent(operation, doc, tokens)
    if isinstance(parent, dict):
        parent[tokens[-1]] = value
    else:
        parent[_index(operation, parent, tokens[-1], end=False)] = value
    return doc


def _move(operation: Any, doc: Any) -> Any:
    source, target = _tokens(operation, "from"), _tokens(operation)
    if source == target:
        _get(operation, doc, source)
        return doc
    if target[: len(source)] == source:
        raise _fails(operation, "a value cannot move into itself")
    return _put(operation, doc, target, _take(operation, doc, source))


def _duplicate(operation: Any, doc: Any) -> Any:
    value = _copy(_get(operation, doc, _tokens(operation, "from")))
    return _put(operation, doc, _tokens(operation), value)


def _same(left: Any, right: Any) -> bool:
    """JSON equality: unlike Python, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _test(operation: Any, doc: Any) -> Any:
    expected = operation.get("value")
    try:
        value = _get(operation, doc, _tokens(operation))
    except Invalid:
        if expected is None and "value" in operation:
            return doc
        raise
    if not _same(value, expected):
        raise _fails(operation, f"testing value {operation.get('path')} failed: test failed")
    return doc


OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _duplicate,
    "test": _test,
}


def apply(doc: Any, ops: Any) -> Any:
    """The patched document; ``doc`` is left as it was.

    Raises: ApiError 400 when ``ops`` is no list of operations, ApiError 413 when it is too long, Invalid when
    an operation does not apply.
    """
    if not isinstance(ops, list) or not all(isinstance(operation, dict) for operation in ops):
        raise ApiError(400, "BadRequest", "error decoding patch: a JSON patch is a list of operations")
    if len(ops) > _LIMIT:
        message = f"The allowed maximum operations in a JSON patch is {_LIMIT}, got {len(ops)}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    out = _copy(doc)
    for operation in ops:
        run = OPERATIONS.get(operation.get("op", ""))
        if run is None:
            raise _fails(operation, "unexpected kind of operation")
        out = run(operation, out)
    return out
