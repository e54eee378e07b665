"""Rewrites the text of a checked expression, so that the library can run it.

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
_SEARCHES = frozenset({"matches", "find", "findAll"})
_KEYWORDS = frozenset({"in", "true", "false", "null"})


def tokens(source: str) -> list[str]:
    """The tokens of an expression, with spaces and comments; together they are the expression."""
    return [match[0] for match in _TOKEN.finditer(source)]


def _meaningful(token_list: list[str]) -> list[int]:
    return [index for index, token in enumerate(token_list) if not token.isspace() and not token.startswith("//")]


def _is_name(token: str) -> bool:
    return token.isidentifier() and token not in _KEYWORDS


def type_names(token_list: list[str]) -> Iterable[tuple[int, int, int]]:
    """The positions of type names before ``{``: the first and last token of the name, and the brace."""
    order = _meaningful(token_list)
    for position, index in enumerate(order):
        if token_list[index] != "{" or position == 0 or not _is_name(token_list[order[position - 1]]):
            continue
        first = position - 1
        while first >= 2 and token_list[order[first - 1]] == "." and _is_name(token_list[order[first - 2]]):
            first -= 2
        yield order[first], order[position - 1], index


def runnable(source: str) -> str:
    """The expression as it is evaluated."""
    if "{" not in source and "format" not in source:
        return source
    token_list = tokens(source)
    for first, last, brace in list(type_names(token_list)):
        for index in list(field_names(token_list, brace)):
            token_list[index] = f"'{token_list[index]}'"
        for index in range(first, last + 1):
            token_list[index] = ""
    _index_optionals(token_list)
    return "".join(token_list)


def constant_patterns(source: str) -> Iterator[tuple[str, int, int]]:
    """The literals that are the patterns of searches, ``text.find('[a-z]')``, with their lines and columns."""
    if not any(name in source for name in _SEARCHES):
        return
    token_list = tokens(source)
    order = _meaningful(token_list)
    for dot, name, opening, literal, after in zip(order, order[1:], order[2:], order[3:], order[4:], strict=False):
        call = token_list[dot], token_list[opening]
        ends = token_list[after] in (")", ",")
        if call == (".", "(") and ends and token_list[name] in _SEARCHES and token_list[literal][-1] in "'\"":
            before = "".join(token_list[:literal])
            yield token_list[literal], before.count("\n") + 1, len(before) - before.rfind("\n")


def field_names(token_list: list[str], brace: int) -> Iterator[int]:
    """The positions of the field names of one object."""
    depth, key = 0, False
    for index in range(brace, len(token_list)):
        token = token_list[index]
        if token in ("{", "(", "["):
            depth += 1
            key = depth == 1
        elif token in ("}", ")", "]"):
            depth -= 1
            if depth == 0:
                return
        elif token == "," and depth == 1:
            key = True
        elif key and depth == 1 and token.isidentifier():
            yield index
            key = False


def _index_optionals(token_list: list[str]) -> None:
    order = _meaningful(token_list)
    significant = [token_list[index] for index in order]
    for position in range(2, len(significant) - 1):
        method = significant[position] == "validate" and significant[position - 1] == "."
        if method or significant[position - 2 : position + 1] == ["format", ".", "named"]:
            end = _closing(significant, position + 1)
            if end is not None:
                token_list[order[end]] += "[?0]"


def _closing(significant: list[str], start: int) -> int | None:
    """The parenthesis that closes the one at ``start``."""
    depth = 0
    for position in range(start, len(significant)):
        depth += {"(": 1, ")": -1}.get(significant[position], 0)
        if depth == 0:
            return position if significant[start] == "(" else None
    return None
