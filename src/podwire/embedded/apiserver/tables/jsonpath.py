"""The JSONPath of printer columns: fields, ``['quoted']`` fields, indexes, ``[*]``, ``..`` and filters.

It is the dialect of ``client-go/util/jsonpath`` as far as a column may use it: one expression, no ranges of
templates. A path is compiled once to steps; each step maps the values found so far to the next ones, and the
first value left is the cell.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[list[Any]], list[Any]]

_TOKEN = re.compile(
    r"""\.\.(?P<deep>[\w-]+|\*)
      | \.(?P<field>(?:\\.|[^.\[\]\\])+)
      | \[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]
      | \[\?\((?P<filter>[^()]*(?:\([^()]*\)[^()]*)*)\)\]
      | \[(?P<slice>-?\d*:-?\d*(?::-?\d+)?)\]
      | \[(?P<index>-?\d+|\*)\]""",
    re.VERBOSE,
)
_FILTER = re.compile(r"\s*@(?P<path>[^=!<>\s]*)\s*(?:(?P<op>==|!=|<=|>=|<|>)\s*(?P<value>.+?))?\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def _field(key: str) -> Step:
    if key == "*":
        return _members_of
    return lambda values: [value[key] for value in values if isinstance(value, dict) and key in value]


def _members_of(values: list[Any]) -> list[Any]:
    out: list[Any] = []
    for value in values:
        out.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    return out


def _index(position: int) -> Step:
    def step(values: list[Any]) -> list[Any]:
        lists = [value for value in values if isinstance(value, list)]
        return [value[position] for value in lists if -len(value) <= position < len(value)]

    return step


def _slice(text: str) -> Step:
    bounds = slice(*(int(part) if part else None for part in text.split(":")))
    return lambda values: [item for value in values if isinstance(value, list) for item in value[bounds]]


def _walk(value: Any) -> Iterator[Any]:
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(item)


def _deep(key: str) -> Step:
    last = _field(key)
    return lambda values: last([inner for value in values for inner in _walk(value)])


def _literal(text: str) -> Any:
    if text[:1] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _filter(text: str) -> Step:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise ValueError(f"unrecognized filter {text}")
    steps = _compile(match["path"]) if match["path"] else ()
    compare = _COMPARE[match["op"]] if match["op"] else None
    literal = _literal(match["value"]) if match["op"] else None

    def passes(item: Any) -> bool:
        results = _run(steps, item)
        if compare is None or not results:
            return bool(results)
        try:
            return compare(results[0], literal)
        except TypeError:
            return False

    return lambda values: [item for item in _members_of(values) if passes(item)]


def _step(match: re.Match[str]) -> Step:
    if match["deep"]:
        return _deep(match["deep"])
    if match["field"]:
        return _field(re.sub(r"\\(.)", r"\1", match["field"]))
    if match["quoted"]:
        return _field(re.sub(r"\\(.)", r"\1", match["quoted"][1:-1]))
    if match["filter"]:
        return _filter(match["filter"])
    if match["slice"]:
        return _slice(match["slice"])
    return _members_of if match["index"] == "*" else _index(int(match["index"]))


@lru_cache(maxsize=512)
def _compile(path: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _TOKEN.match(path, position)
        if match is None:
            raise ValueError(f"unrecognized character in path at {path[position:]}")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _run(steps: tuple[Step, ...], value: Any) -> list[Any]:
    values = [value]
    for step in steps:
        values = step(values)
    return values


def find(path: str, value: Any) -> list[Any]:
    """Every value the path leads to, in order.

    Raises: ValueError for a path that cannot be read.
    """
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$").removeprefix("@")
    return _run(_compile(text if text[:1] in (".", "[", "") else f".{text}") if text != "." else (), value)
