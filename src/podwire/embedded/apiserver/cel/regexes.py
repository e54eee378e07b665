"""Searching with regular expressions of RE2, in time linear in the text.

The library's function extracts the capture group of a pattern, but Kubernetes' functions return the whole match. So all
groups of a pattern are turned into non-capturing groups.
"""

import re
from functools import cache
from typing import Any

_PART = re.compile(
    r"\\Q.*?(?:\\E|$)"  # quoted text
    r"|\\."  # an escaped character
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"  # a class of characters
    r"|(?P<group>\((?:\?P?<\w+>|(?!\?)))",
    re.DOTALL,
)


def without_groups(pattern: str) -> str:
    """The pattern with groups that do not capture."""
    return _PART.sub(lambda match: "(?:" if match["group"] else match[0], pattern)


@cache
def _program(source: str) -> Any:
    from cel_expr_python import cel

    config = cel.NewEnvConfigFromYaml("name: search\nextensions:\n- name: optional\n- name: regex\n")
    string = cel.Type.STRING
    return cel.NewEnv(config=config, variables={"text": string, "pattern": string}).compile(source)


def _search(source: str, text: str, pattern: str) -> Any:
    from cel_expr_python import cel

    result = _program(source).eval(data={"text": text, "pattern": without_groups(pattern)})
    if result.type() == cel.Type.ERROR:
        raise ValueError(f"invalid regular expression: {pattern}")
    return result.plain_value()


@cache
def _match() -> Any:
    from cel_expr_python import cel

    config = cel.NewEnvConfigFromYaml("name: match\n")
    return cel.NewEnv(config=config, variables={"pattern": cel.Type.STRING}).compile("''.matches(pattern)")


def problem(pattern: str) -> str:
    """What RE2 says of a pattern that it does not take; empty for a valid one."""
    from cel_expr_python import cel

    result = _match().eval(data={"pattern": pattern})
    return str(result.plain_value()) if result.type() == cel.Type.ERROR else ""


def find(text: str, pattern: str) -> str:
    """The first match; empty without one.

    Raises: ValueError for a pattern that RE2 does not take.
    """
    return str(_search("regex.extract(text, pattern).orValue('')", text, pattern))


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """All matches, or the first ``limit``.

    Raises: ValueError for a pattern that RE2 does not take.
    """
    matches: list[str] = _search("regex.extractAll(text, pattern)", text, pattern)
    return matches if limit < 0 else matches[:limit]
