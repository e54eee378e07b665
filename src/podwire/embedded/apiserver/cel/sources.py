"""Changes the text of an expression that was checked, so that the library can run it.

- ``Object.spec{replicas: 1}`` becomes ``{'replicas': 1}``: objects are maps at run time.
- ``format.named(x)`` and ``f.validate(x)`` give optionals, which a function in Python cannot return. It returns a list
  with the value or an empty list, and ``[?0]`` behind the call makes the optional.
"""

import re
from collections.abc import Iterable, Iterator

_TOKEN = re.compile(
    r"(?P<text>[rRbB]{0,2}(?:\"\"\"(?:\\.|.)*?\"\"\"|'''(?:\\.|.)*?'''))"
    r"|(?P<raw>[bB]?[rR][bB]?(?:\"[^\"\n]*\"|'[^'\n]*'))"
    r"|(?P<line>[bB]?(?:\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))"
    r"|(?P<space>\s+|//[^\n]*)|(?P<name>[A-Za-z_]\w*)|(?P<other>.)",
    re.DOTALL,
)
_KEYWORDS = frozenset({"in", "true", "false", "null"})


def tokens(source: str) -> list[str]:
    """The tokens of an expression, with spaces and comments; together they are the expression."""
    return [found[0] for found in _TOKEN.finditer(source)]


def _meaningful(parts: list[str]) -> list[int]:
    return [index for index, part in enumerate(parts) if not part.isspace() and not part.startswith("//")]


def _is_name(part: str) -> bool:
    return part.isidentifier() and part not in _KEYWORDS


def type_names(parts: list[str]) -> Iterable[tuple[int, int, int]]:
    """Where names of types stand before ``{``: the first and last token of the name, and the brace."""
    order = _meaningful(parts)
    for place, index in enumerate(order):
        if parts[index] != "{" or place == 0 or not _is_name(parts[order[place - 1]]):
            continue
        first = place - 1
        while first >= 2 and parts[order[first - 1]] == "." and _is_name(parts[order[first - 2]]):
            first -= 2
        yield order[first], order[place - 1], index


def runnable(source: str) -> str:
    """The expression as it is evaluated."""
    if "{" not in source and "format" not in source:
        return source
    parts = tokens(source)
    for first, last, brace in list(type_names(parts)):
        for index in list(field_names(parts, brace)):
            parts[index] = f"'{parts[index]}'"
        for index in range(first, last + 1):
            parts[index] = ""
    _index_optionals(parts)
    return "".join(parts)


def field_names(parts: list[str], brace: int) -> Iterator[int]:
    """Where the names of the fields of one object stand."""
    depth, key = 0, False
    for index in range(brace, len(parts)):
        part = parts[index]
        if part in ("{", "(", "["):
            depth += 1
            key = depth == 1
        elif part in ("}", ")", "]"):
            depth -= 1
            if depth == 0:
                return
        elif part == "," and depth == 1:
            key = True
        elif key and depth == 1 and part.isidentifier():
            yield index
            key = False


def _index_optionals(parts: list[str]) -> None:
    order = _meaningful(parts)
    words = [parts[index] for index in order]
    for place in range(2, len(words) - 1):
        method = words[place] == "validate" and words[place - 1] == "."
        if method or words[place - 2 : place + 1] == ["format", ".", "named"]:
            end = _closing(words, place + 1)
            if end is not None:
                parts[order[end]] += "[?0]"


def _closing(words: list[str], start: int) -> int | None:
    """The parenthesis that closes the one at ``start``."""
    depth = 0
    for place in range(start, len(words)):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if depth == 0:
            return place if words[start] == "(" else None
    return None
