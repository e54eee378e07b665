"""Text form of state values: tables of keywords that print a value and parse it back.

A :class:`Grammar` describes one kind of object as ip(8) writes it: a noun, one positional word, then keywords that are
followed by a word, and flags. A value equal to its default is not printed, so a text is canonical. Words with spaces,
quotes or backslashes are quoted as in a shell (double quotes only).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_PLAIN = re.compile(r"[^\s\"\\#]+")


class Option(NamedTuple):
    """One keyword: ``word`` in the text, ``field`` of the value, and the conversion between them.

    ``text`` and ``number`` take the next word; ``hex`` is a number printed in hexadecimal; ``flag`` is a word alone
    that stands for True, ``noflag`` one for False; ``switch`` is ``word`` for True and ``other`` for False and is
    always printed.
    """

    word: str
    field: str
    form: Literal["text", "number", "hex", "flag", "noflag", "switch"] = "text"
    other: str = ""


class Grammar(NamedTuple):
    """The text form of one kind of object."""

    noun: str
    positional: str
    options: tuple[Option, ...]


def quote(word: str) -> str:
    """The word as it is printed, with quotes if needed."""
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def split(line: str) -> list[str]:
    """The words of a line, unquoted."""
    return list(_split(line))


def _split(line: str) -> Iterator[str]:
    for quoted, plain in _WORD.findall(line):
        if plain:
            yield plain
        else:
            yield re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], quoted)


def render(grammar: Grammar, value: Any, defaults: Mapping[str, Any]) -> list[str]:
    """The words after the noun: the positional one, then each option that differs from its default."""
    tokens = [quote(str(getattr(value, grammar.positional)))] if grammar.positional else []
    for option in grammar.options:
        tokens.extend(_render_option(option, getattr(value, option.field), defaults.get(option.field)))
    return tokens


def _render_option(option: Option, value: Any, default: Any) -> list[str]:
    match option.form:
        case "switch":
            return [option.word if value else option.other]
        case "flag":
            return [option.word] if value else []
        case "noflag":
            return [] if value else [option.word]
        case "hex":
            return [] if value == default else [option.word, hex(value)]
        case _:
            return [] if value == default else [option.word, quote(str(value))]


def parse(grammar: Grammar, tokens: list[str]) -> dict[str, Any]:
    """The fields in ``tokens``, which follow the noun.

    Raises: ValueError naming the word that is unknown, missing or not a number.
    """
    fields: dict[str, Any] = {}
    remaining = iter(tokens)
    if grammar.positional:
        fields[grammar.positional] = _next(remaining, grammar.noun)
    table = {option.word: (option, True) for option in grammar.options}
    table |= {option.other: (option, False) for option in grammar.options if option.other}
    for word in remaining:
        if word not in table:
            raise ValueError(f"unknown keyword {word!r} of {grammar.noun}: expected one of {', '.join(table)}")
        option, positive = table[word]
        fields[option.field] = _parse_option(option, positive, remaining)
    return fields


def find(grammar: Grammar, tokens: list[str], word: str) -> int | None:
    """The index of a keyword in the words after the noun, None where it is only the value of another option."""
    alone = {option.other for option in grammar.options}
    alone |= {option.word for option in grammar.options if option.form in ("flag", "noflag", "switch")}
    at = 1 if grammar.positional else 0
    while at < len(tokens):
        if tokens[at] == word:
            return at
        at += 1 if tokens[at] in alone else 2
    return None


def _parse_option(option: Option, positive: bool, remaining: Iterator[str]) -> Any:
    match option.form:
        case "switch":
            return positive
        case "flag":
            return True
        case "noflag":
            return False
        case "text":
            return _next(remaining, option.word)
    word = _next(remaining, option.word)
    try:
        return int(word, 0)
    except ValueError:
        raise ValueError(f"{option.word} takes a number, not {word!r}") from None


def _next(remaining: Iterator[str], after: str) -> str:
    word = next(remaining, None)
    if word is None:
        raise ValueError(f"expected a word after {after!r}, but the line ends there")
    return word
