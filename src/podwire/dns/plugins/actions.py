"""The actions of template lines: the part of Go's templates that record lines use. Pure.

An action stands in ``{{ }}`` and is a value or a call: ``.Name``, ``.Zone``, ``.Class``, ``.Type``, ``.Remote``,
``.Group.NAME``, ``.Message.ID`` (or ``.Message.Id``), ``.Question.Name``, ``index .Match N``, ``parseInt VALUE BASE
SIZE``, ``printf FORMAT VALUE...``; ``|`` passes a value on as the last argument. Anything else (``if``, ``range``,
variables) is refused when the Corefile is read. Source: https://pkg.go.dev/text/template.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from podwire.errors import ProtocolError

_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")
_WORD = re.compile(r'"(?:\\.|[^"\\])*"|`[^`]*`|\(|\)|\||[^\s()|]+')


class TemplateValues(msgspec.Struct, frozen=True):
    """What the actions of a line may use; without a name no expression matched."""

    zone: str
    name: str = ""
    rclass: str = "IN"
    rtype: str = ""
    remote: str = ""
    matches: tuple[str, ...] = ()
    groups: Mapping[str, str] = {}
    ident: int = 0


Render = Callable[[TemplateValues], str]
"""The text of an action."""

_FIELDS: dict[str, Render] = {
    ".Zone": lambda values: values.zone,
    ".Name": lambda values: values.name,
    ".Class": lambda values: values.rclass,
    ".Type": lambda values: values.rtype,
    ".Remote": lambda values: values.remote,
    ".Message.ID": lambda values: str(values.ident),
    ".Message.Id": lambda values: str(values.ident),
    ".Question.Name": lambda values: values.name,
}
_PER_CLIENT = (".Remote", ".Message.ID", ".Message.Id")


class TemplateLine(msgspec.Struct, frozen=True):
    """A line with its actions; ``groups`` are the named groups that it uses."""

    text: str
    parts: tuple[Render, ...]
    groups: tuple[str, ...] = ()
    per_client: bool = False

    def render(self, values: TemplateValues) -> str:
        """The line for a request.

        Raises: ProtocolError when an action fails.
        """
        return "".join([part(values) for part in self.parts])


def parse_line(text: str) -> TemplateLine:
    """The line of a template.

    Raises: ProtocolError for an action that is not known.
    """
    parts: list[Render] = []
    groups: list[str] = []
    end = 0
    for match in _ACTION.finditer(text):
        parts += [_constant(text[end : match.start()]), _parse_action(match[1])]
        groups += re.findall(r"\.Group\.(\w+)", match[1])
        end = match.end()
    rest = text[end:]
    if "{{" in rest:
        raise ProtocolError("local", f"template {text!r}: expected }}}} after {{{{")
    per_client = any(field in match for match in _ACTION.findall(text) for field in _PER_CLIENT)
    return TemplateLine(text, (*parts, _constant(rest)), tuple(groups), per_client)


def _constant(text: str) -> Render:
    return lambda _values: text


def _parse_action(text: str) -> Render:
    rendered: list[Render] = []
    command: list[str] = []
    for word in (*_WORD.findall(text), "|"):
        if word != "|":
            command.append(word)
            continue
        rendered = [_parse_command(text, command, rendered)]
        command = []
    return rendered[0]


def _parse_command(text: str, command: list[str], piped: list[Render]) -> Render:
    if not command:
        raise ProtocolError("local", f"template action {text!r}: expected a value")
    name, *rest = command
    if name not in ("index", "parseInt", "printf"):
        if rest or piped:
            raise ProtocolError("local", f"template action {text!r}: podwire does not have {name!r} with arguments")
        return _parse_value(text, name)
    if name == "index":
        if len(rest) != 2 or rest[0] != ".Match" or not rest[1].isdigit():
            raise ProtocolError("local", f"template action {text!r}: expected index .Match and a number")
        return _matched(int(rest[1]))
    arguments = [_parse_value(text, word) for word in rest] + piped
    if name == "printf" and arguments:
        return lambda values: _printf(*[argument(values) for argument in arguments])
    if name == "parseInt" and len(arguments) == 3:
        return lambda values: _parse_integer(*[argument(values) for argument in arguments])
    raise ProtocolError("local", f"template action {text!r}: {name} has a wrong number of arguments")


def _matched(number: int) -> Render:
    def render(values: TemplateValues) -> str:
        if number >= len(values.matches):
            raise ProtocolError("local", f"match {number} of {len(values.matches)}")
        return values.matches[number]

    return render


def _parse_value(text: str, word: str) -> Render:
    if word in _FIELDS:
        return _FIELDS[word]
    group = re.fullmatch(r"\.Group\.(\w+)", word)
    if group is not None:
        return lambda values: values.groups.get(group[1], "")
    if word[0] in '"`' or word.isdigit():
        return _constant(word.strip('"`') if not word.isdigit() else word)
    known = ", ".join((*_FIELDS, ".Group.NAME", "index .Match N", "parseInt", "printf"))
    raise ProtocolError("local", f"template action {text!r}: podwire does not have {word!r}; it has {known}")


def _parse_integer(digits: str, base: str, size: str) -> str:
    try:
        number = int(digits, int(base))
    except ValueError as failure:
        raise ProtocolError("local", f"parseInt: {digits!r} is not a number of base {base}") from failure
    if number < 0 or (int(size) and number >> int(size)):
        raise ProtocolError("local", f"parseInt: {digits!r} has more than {size} bits")
    return str(number)


def _printf(pattern: str, *values: str) -> str:
    queue = list(values)

    def insert(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if not queue:
            raise ProtocolError("local", f"printf: {pattern!r} needs more values")
        text = queue.pop(0)
        return match[0].replace("v", "s") % (int(text) if match[0][-1] in "dxX" else text)

    return re.sub(r"%%|%[-+ 0]*\d*(?:\.\d+)?[svdxX]", insert, pattern)
