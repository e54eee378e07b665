"""Selectors in Calico's language: an expression over labels, as in ``BGPPeer.spec.nodeSelector``.

    expression = term { "||" term }       term = factor { "&&" factor }
    factor = "!" factor | "(" expression ")" | "all()" | "global()" | "has(" label ")"
           | label ( "==" | "!=" | "contains" | "starts with" | "ends with" ) text
           | label [ "not" ] "in" "{" [ text { "," text } ] "}"

Texts are in single or double quotes. ``!=`` and ``not in`` are true for a label that is absent, every other comparison
is false for it. Source: Calico's API reference, "Selectors".
"""

import re
from collections.abc import Mapping

import msgspec

from podwire.errors import ConfigError

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*')|(?P<word>[A-Za-z0-9_./-]+)|(?P<mark>==|!=|&&|\|\||[!(){},]))""",
)
_DEEPEST = 32
"""So deep may parentheses and negations be nested."""


class Comparison(msgspec.Struct, frozen=True, gc=False):
    """One comparison of a label; ``operator`` is ``has``, ``in``, ``not in``, ``contains``, ``starts`` or ``ends``."""

    label: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy the comparison."""
        value = labels.get(self.label)
        if value is None:
            return self.operator == "not in"
        match self.operator:
            case "in":
                return value in self.values
            case "not in":
                return value not in self.values
            case "contains":
                return self.values[0] in value
            case "starts":
                return value.startswith(self.values[0])
            case "ends":
                return value.endswith(self.values[0])
            case _:
                return True


class Combination(msgspec.Struct, frozen=True, gc=False):
    """``and``, ``or`` or ``not`` (of one); an ``and`` of nothing is true."""

    operator: str
    operands: "tuple[Expression, ...]" = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy the combination."""
        if self.operator == "not":
            return not self.operands[0].matches(labels)
        results = (operand.matches(labels) for operand in self.operands)
        return any(results) if self.operator == "or" else all(results)


Expression = Comparison | Combination

EVERYTHING = Combination("and")
"""``all()``."""


def parse_expression(text: str, source: str, path: str) -> Expression:
    """The expression of a text.

    Raises: ConfigError naming the source, the path and the place in the text.
    """
    return _Parser(text, source, path).parse()


class _Parser:
    """Reads one text by recursive descent."""

    def __init__(self, text: str, source: str, path: str) -> None:
        self._text, self._source, self._path = text, source, path
        self._at = 0
        self._next: tuple[str, str] = ("", "")
        self._place = 0
        self._depth = 0
        self._advance()

    def parse(self) -> Expression:
        expression = self._either()
        if self._next[0]:
            raise self._wrong("the end, && or ||")
        return expression

    def _wrong(self, expected: str) -> ConfigError:
        got = self._next[1] or self._text[self._at : self._at + 10].strip() or "the end"
        position = f"at character {self._place + 1} of {self._text!r}"
        return ConfigError(self._source, self._path, f"not a selector: {got!r} {position}; expected {expected}")

    def _advance(self) -> tuple[str, str]:
        """Takes the present token, and reads the next one: its kind (empty at the end) and its text."""
        token = self._next
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._place = self._at
            self._next = ("", "")
            if self._text[self._at :].strip():
                raise self._wrong("a label, a text in quotes, or an operator")
        else:
            kind = match.lastgroup or ""
            self._next = (kind, match[kind])
            self._place, self._at = match.start(kind), match.end()
        return token

    def _take(self, token: str) -> bool:
        if self._next[0] != "text" and self._next[1] == token:
            self._advance()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong(token)

    def _either(self) -> Expression:
        operands = [self._both()]
        while self._take("||"):
            operands.append(self._both())
        return operands[0] if len(operands) == 1 else Combination("or", tuple(operands))

    def _both(self) -> Expression:
        operands = [self._factor()]
        while self._take("&&"):
            operands.append(self._factor())
        return operands[0] if len(operands) == 1 else Combination("and", tuple(operands))

    def _factor(self) -> Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong(f"no more than {_DEEPEST} nested parentheses and negations")
        try:
            if self._take("!"):
                return Combination("not", (self._factor(),))
            if self._take("("):
                expression = self._either()
                self._expect(")")
                return expression
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Expression:
        if self._next[0] != "word":
            raise self._wrong("a label, has(label), all(), ! or (")
        word = self._advance()[1]
        if word in ("all", "global", "has") and self._take("("):
            expression: Expression = EVERYTHING
            if word == "has":
                if self._next[0] != "word":
                    raise self._wrong("a label")
                expression = Comparison(self._advance()[1], "has")
            self._expect(")")
            return expression
        return self._of_label(word)

    def _of_label(self, label: str) -> Expression:
        if self._take("=="):
            return Comparison(label, "in", (self._value(),))
        if self._take("!="):
            return Comparison(label, "not in", (self._value(),))
        if self._take("in"):
            return Comparison(label, "in", self._values())
        if self._take("not"):
            self._expect("in")
            return Comparison(label, "not in", self._values())
        if self._take("contains"):
            return Comparison(label, "contains", (self._value(),))
        for side in ("starts", "ends"):
            if self._take(side):
                self._expect("with")
                return Comparison(label, side, (self._value(),))
        raise self._wrong("==, !=, in, not in, contains, starts with or ends with")

    def _value(self) -> str:
        if self._next[0] != "text":
            raise self._wrong("a text in quotes")
        return self._advance()[1][1:-1]

    def _values(self) -> tuple[str, ...]:
        self._expect("{")
        values: list[str] = []
        while not self._take("}"):
            if values:
                self._expect(",")
            values.append(self._value())
        return tuple(values)
