"""A Corefile as lines with a tree over them, so that an edit leaves every other line as it is. Pure.

Blanks separate words; a word in double quotes may contain blanks and line ends; ``#`` begins a comment where a word may
begin. A line that ends with ``{`` opens a block, and a line that begins with ``}`` closes it. Imports and variables
stay as they are written. Source: https://coredns.io/manual/configuration/.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from podwire.errors import ConfigError

_WORD = re.compile(r'[ \t\r]+|#[^\n]*|\n|"(?:\\"|[^"])*"|[^\s]+')

_DEEPEST = 20
"""Levels of blocks. CoreDNS knows three: a server block, a plugin, and an option with a block."""


class Token(msgspec.Struct, frozen=True):
    """A word as written, with the line (from 0) and the column in which it ends."""

    text: str
    line: int
    last_line: int
    end: int


class Item(msgspec.Struct, frozen=True):
    """A directive, server block, snippet or option: its tokens, its lines, and its block."""

    tokens: tuple[Token, ...]
    """Without the brace that opens the block."""
    last_line: int
    """The last line of the whole item, from 0."""
    opened: bool = False
    """Whether it has a block, which may be empty."""
    block: tuple["Item", ...] = ()

    @property
    def name(self) -> str:
        """The first word."""
        return self.tokens[0].text

    @property
    def arguments(self) -> tuple[str, ...]:
        """The tokens after the first."""
        return tuple(word.text for word in self.tokens[1:])

    @property
    def line(self) -> int:
        """The first line, from 0."""
        return self.tokens[0].line


class Edit(msgspec.Struct, frozen=True):
    """Lines instead of those from ``first`` to ``last``; where ``last`` is before ``first``, lines before ``first``."""

    first: int
    last: int
    lines: tuple[str, ...] = ()


class CorefileDocument(msgspec.Struct, frozen=True):
    """A Corefile, or the directives that a file of imports has."""

    source: str
    lines: tuple[str, ...]
    items: tuple[Item, ...]

    @property
    def text(self) -> str:
        """The text, byte for byte as it was parsed."""
        return "\n".join(self.lines)


def parse_document(text: str, source: str) -> CorefileDocument:
    """The tree of a Corefile or of a fragment.

    Raises: ConfigError naming the line.
    """
    queue = _lines_of_words(text, source)
    items = _items(queue, source, 0)
    if queue:
        raise ConfigError(source, f"line {queue[0][0].line + 1}", "expected no } here; no block is open")
    return CorefileDocument(source, tuple(text.split("\n")), items)


def edited(document: CorefileDocument, edits: Iterable[Edit]) -> str:
    """The text after all edits, whose lines are those of the document; the edits do not overlap."""
    lines = list(document.lines)
    for edit in sorted(edits, key=lambda edit: (edit.first, edit.last), reverse=True):
        lines[edit.first : edit.last + 1] = edit.lines
    return "\n".join(lines)


def indentation(line: str) -> str:
    """The blanks at the beginning of a line."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def _lines_of_words(text: str, source: str) -> list[list[Token]]:
    lines: list[list[Token]] = [[]]
    number, begin = 0, 0
    for match in _WORD.finditer(text):
        word = match[0]
        if word == "\n":
            lines.append([])
        elif not word.isspace() and not word.startswith("#"):
            if word.startswith('"') and (len(word) < 2 or not word.endswith('"')):
                raise ConfigError(source, f"line {number + 1}", "expected a closing quote")
            last_line = number + word.count("\n")
            end = match.end() - begin if last_line == number else len(word) - word.rfind("\n") - 1
            lines[-1].append(Token(word, number, last_line, end))
        if "\n" in word:
            number += word.count("\n")
            begin = match.start() + word.rfind("\n") + 1
    return [line for line in lines if line]


def _items(queue: list[list[Token]], source: str, depth: int) -> tuple[Item, ...]:
    """The items up to the brace that closes the block, which stays in the queue, or to the end."""
    items = []
    if depth > _DEEPEST:
        raise ConfigError(
            source, f"line {queue[0][0].line + 1}" if queue else "", f"expected at most {_DEEPEST} levels"
        )
    while queue and queue[0][0].text != "}":
        tokens = queue.pop(0)
        if tokens[-1].text != "{" and queue and [word.text for word in queue[0]] == ["{"]:
            tokens += queue.pop(0)
        if tokens[-1].text != "{":
            items.append(Item(tuple(tokens), tokens[-1].last_line))
            continue
        if len(tokens) == 1:
            raise ConfigError(source, f"line {tokens[0].line + 1}", "expected a name before {")
        block = _items(queue, source, depth + 1)
        if not queue:
            problem = f"expected }} that closes {tokens[0].text!r}"
            raise ConfigError(source, f"line {tokens[0].line + 1}", problem)
        closing = queue.pop(0)
        if len(closing) > 1:
            raise ConfigError(
                source, f"line {closing[0].line + 1}", f"expected a line end after }}, got {closing[1].text!r}"
            )
        items.append(Item(tuple(tokens[:-1]), closing[0].line, True, block))
    return tuple(items)


def walk(items: Iterable[Item]) -> Iterator[Item]:
    """All items, each before those in its block."""
    for item in items:
        yield item
        yield from walk(item.block)
