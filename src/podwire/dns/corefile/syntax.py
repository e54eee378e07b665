"""The syntax of a Corefile: server blocks of directives with arguments and nested blocks. Pure.

Words are separated by blanks; a word in double quotes may contain blanks and line ends, with ``\\"`` for a quote.
``#`` begins a comment. ``{`` at the end of a line opens a block. ``{$NAME}`` and ``{%NAME%}`` stand for environment
variables. A block named ``(name)`` is a snippet that ``import name`` inserts; ``import FILE`` inserts files.
Source: https://coredns.io/manual/configuration/.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from podwire.errors import ConfigError

_WORD = re.compile(r'[ \t\r]+|#[^\n]*|\n|"((?:\\"|[^"])*)"|[^\s]+')
_VARIABLE = re.compile(r"\{\$([A-Za-z_][A-Za-z0-9_]*)\}|\{%([A-Za-z_][A-Za-z0-9_]*)%\}")
_MAX_IMPORTS = 100


class Directive(msgspec.Struct, frozen=True):
    """One directive: its name, arguments and nested directives, and the line on which it begins."""

    name: str
    arguments: tuple[str, ...]
    source: str
    line: int
    block: tuple["Directive", ...] = ()

    def wrong(self, problem: str) -> ConfigError:
        """An error about this directive."""
        return ConfigError(self.source, f"line {self.line}: {self.name}", problem)


class ServerBlock(msgspec.Struct, frozen=True):
    """The directives of one or several zones; ``zones`` as written, for example ``.:53``."""

    zones: tuple[str, ...]
    directives: tuple[Directive, ...]
    source: str
    line: int


class _Token(msgspec.Struct, frozen=True):
    text: str
    source: str
    line: int
    quoted: bool = False


ReadFiles = Callable[[str], Mapping[str, str]]
"""The files that an import names, text by path; empty when there is none."""


def parse_corefile(
    text: str, source: str, environment: Mapping[str, str], read_files: ReadFiles
) -> tuple[ServerBlock, ...]:
    """The server blocks in order, with snippets, files and variables inserted.

    Raises: ConfigError naming the line.
    """
    return _Parser(environment, read_files).parse(_tokens(text, source, environment))


def _tokens(text: str, source: str, environment: Mapping[str, str]) -> list[list[_Token]]:
    """The words of each line that has any."""
    lines: list[list[_Token]] = [[]]
    number = 1
    for match in _WORD.finditer(text):
        word = match[0]
        if word == "\n":
            lines.append([])
        elif not word.isspace() and not word.startswith("#"):
            quoted = match[1] is not None
            if word.startswith('"') and not quoted:
                raise ConfigError(source, f"line {number}", "expected a closing quote")
            plain = match[1].replace('\\"', '"') if quoted else word
            plain = _VARIABLE.sub(lambda match: environment.get(match[1] or match[2], ""), plain)
            lines[-1].append(_Token(plain, source, number, quoted))
        number += word.count("\n")
    return [line for line in lines if line]


class _Parser:
    def __init__(self, environment: Mapping[str, str], read_files: ReadFiles) -> None:
        self._environment = environment
        self._read_files = read_files
        self._snippets: dict[str, list[list[_Token]]] = {}
        self._imports = 0

    def parse(self, lines: list[list[_Token]]) -> tuple[ServerBlock, ...]:
        blocks = []
        queue = list(lines)
        while queue:
            line = queue.pop(0)
            first = line[0]
            if first.text == "import":
                queue[:0] = self._import(line)
                continue
            if line[-1].text != "{" or line[-1].quoted:
                if not queue or [token.text for token in queue[0]] != ["{"]:
                    raise ConfigError(first.source, f"line {first.line}", f"expected {{ after {line[-1].text!r}")
                line = line + queue.pop(0)
            body = self._take_block(queue, first)
            if re.fullmatch(r"\(\S+\)", first.text) and len(line) == 2:
                self._snippets[first.text[1:-1]] = body
                continue
            zones = tuple(zone for token in line[:-1] for zone in token.text.split(",") if zone)
            blocks.append(ServerBlock(zones, self._directives(body), first.source, first.line))
        return tuple(blocks)

    def _take_block(self, queue: list[list[_Token]], opened: _Token) -> list[list[_Token]]:
        """The lines of a block without its closing brace; the queue continues after it."""
        depth = 1
        body: list[list[_Token]] = []
        while queue:
            line = queue.pop(0)
            if line[0].text == "}" and not line[0].quoted:
                depth -= 1
                if not depth:
                    if len(line) > 1:
                        queue.insert(0, line[1:])
                    return body
            if line[-1].text == "{" and not line[-1].quoted:
                depth += 1
            body.append(line)
        raise ConfigError(opened.source, f"line {opened.line}", f"expected }} that closes {opened.text!r}")

    def _directives(self, lines: list[list[_Token]]) -> tuple[Directive, ...]:
        directives = []
        queue = list(lines)
        while queue:
            line = queue.pop(0)
            first = line[0]
            if first.text == "import":
                queue[:0] = self._import(line)
                continue
            block: tuple[Directive, ...] = ()
            if line[-1].text == "{" and not line[-1].quoted:
                line = line[:-1]
                block = self._directives(self._take_block(queue, first))
            arguments = tuple(token.text for token in line[1:])
            directives.append(Directive(first.text, arguments, first.source, first.line, block))
        return tuple(directives)

    def _import(self, line: list[_Token]) -> list[list[_Token]]:
        where = ConfigError(line[0].source, f"line {line[0].line}: import", "expected one snippet or file")
        self._imports += 1
        if len(line) != 2:
            raise where
        if self._imports > _MAX_IMPORTS:
            raise ConfigError(
                where.source, where.path, f"expected at most {_MAX_IMPORTS} imports; do they form a loop?"
            )
        name = line[1].text
        if name in self._snippets:
            return self._snippets[name]
        files = self._read_files(name)
        # As in CoreDNS, a pattern that matches no file inserts nothing.
        if not files and "*" not in name:
            raise ConfigError(where.source, where.path, f"expected a snippet or a file, got {name!r}")
        return [tokens for path in sorted(files) for tokens in _tokens(files[path], path, self._environment)]
