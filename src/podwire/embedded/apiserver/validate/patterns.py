"""Regular expressions of CustomResourceDefinitions: Kubernetes' RE2 syntax, compiled for Python.

RE2 has no lookaround, no backreferences and no atomic groups, so a pattern with these is refused. Of RE2's own syntax,
``\\z``, ``\\Q...\\E``, POSIX classes (``[[:alpha:]]``) and Unicode classes (``\\pL``) differ from Python. ``\\z`` and
POSIX classes are translated. The others are refused with their position, since a pattern that is not checked would let
invalid objects pass.
"""

import re
from functools import lru_cache

_POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7F", "blank": r"\t ", "cntrl": r"\x00-\x1F\x7F",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_TOKEN = re.compile(r"\\.|\[:\^?\w+:\]|\(\?(?:[=!>(]|<[=!]|P=)|[*+?}]\+|\[|\]|.", re.DOTALL)


class UnsupportedPatternError(ValueError):
    """A pattern that cannot be used, with the reason and the place."""


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern for Python.

    Raises: UnsupportedPatternError for a pattern that RE2 refuses or that Python cannot read.
    """
    translated = "".join(_translate(text))
    try:
        return re.compile(translated, re.ASCII)
    except re.error as failure:
        where = "" if failure.pos is None else f" at position {failure.pos}"
        raise UnsupportedPatternError(f"error parsing regexp: {failure.msg}{where}: `{text}`") from failure


def _translate(text: str) -> list[str]:
    out: list[str] = []
    in_class = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "[" and not in_class:
            in_class = True
        elif token == "]" and in_class and out[-1] not in ("[", "[^"):
            in_class = False
        elif token.startswith("[:") and in_class:
            token = _posix(token, match.start())
        elif token.startswith("(?") and not in_class and len(token) > 2:
            raise UnsupportedPatternError(
                f"error parsing regexp: invalid or unsupported Perl syntax: `{token}` at position {match.start()}"
            )
        elif len(token) == 2 and token[1] == "+" and not in_class and token[0] != "\\":
            raise UnsupportedPatternError(
                f"error parsing regexp: invalid nested repetition operator: `{token}` at position {match.start()}"
            )
        elif token[0] == "\\" and len(token) == 2:
            token = _escape(token, match.start())
        if token == "^" and in_class and out and out[-1] == "[":
            out[-1] = "[^"
            continue
        out.append(token)
    return out


def _posix(token: str, position: int) -> str:
    name = token.strip("[:^]")
    if token.startswith("[:^") or name not in _POSIX:
        problem = "error parsing regexp: invalid character class range"
        raise UnsupportedPatternError(f"{problem}: `{token}` at position {position}")
    return _POSIX[name]


def _escape(token: str, position: int) -> str:
    if token[1] in "123456789":
        raise UnsupportedPatternError(
            f"error parsing regexp: invalid escape sequence: `{token}` at position {position}"
        )
    if token[1] in "pPQECX":
        raise UnsupportedPatternError(f"cannot check the escape sequence `{token}` at position {position}")
    return {r"\z": r"\Z"}.get(token, token)
