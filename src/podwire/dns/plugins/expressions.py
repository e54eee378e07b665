"""The expressions of ``view``: a parser that turns text into a function of a request. Pure.

Grammar, loosest first: ``a ? b : c``; ``||`` ``or``; ``&&`` ``and``; ``==`` ``!=`` ``<`` ``<=`` ``>`` ``>=`` ``in``
``not in`` ``matches`` ``contains`` ``startsWith`` ``endsWith``; ``+`` ``-``; ``*`` ``/`` ``%``; ``!`` ``not`` ``-``;
literals, lists, calls and brackets. Names are functions of the request only, so nothing else can be reached. Source of
the language: https://expr-lang.org/docs/language-definition, of which this is the part that CoreDNS documents.
"""

import re
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

from podwire.dns import wire
from podwire.dns.names import decode_name
from podwire.dns.plugins.plugin import PluginRequest
from podwire.errors import ProtocolError
from podwire.model.wording import count

Evaluate = Callable[[PluginRequest], Any]
"""The value of an expression for a request."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<text>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")"
    r"|(?P<sign>==|!=|<=|>=|&&|\|\||[<>!()\[\],?:+\-*/%]))"
)
_CLASSES = {1: "IN", 3: "CH", 4: "HS", 255: "ANY"}


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


_REQUEST: dict[str, Evaluate] = {
    "bufsize": lambda request: request.query.edns.size if request.query.edns is not None else 512,
    "class": lambda request: _CLASSES.get(request.query.qclass, str(request.query.qclass)),
    "client_ip": lambda request: _bracketed(request.client),
    "do": lambda request: request.query.edns is not None and request.query.edns.dnssec_ok,
    "id": lambda request: request.query.id,
    "name": lambda request: decode_name(request.query.name).lower(),
    "opcode": lambda request: (request.query.flags & wire.OPCODE_MASK) >> 11,
    "port": lambda request: str(request.port),
    "proto": lambda request: "tcp" if request.tcp else "udp",
    "server_ip": lambda request: _bracketed(request.server),
    "server_port": lambda request: str(request.server_port),
    "size": lambda request: request.size,
    "type": lambda request: wire.TYPE_NAMES.get(request.query.qtype, f"TYPE{request.query.qtype}"),
}


def _in_network(address: str, cidr: str) -> bool:
    return ip_address(address.strip("[]")) in ip_network(cidr, strict=False)


_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "incidr": (2, _in_network),
    "len": (1, len),
    "lower": (1, str.lower),
    "upper": (1, str.upper),
    "trim": (1, str.strip),
}

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "in": lambda left, right: left in right,
    "contains": lambda left, right: right in left,
    "startsWith": lambda left, right: left.startswith(right),
    "endsWith": lambda left, right: left.endswith(right),
}
_SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "%": lambda left, right: left % right,
}


def parse_expression(text: str) -> Evaluate:
    """The function of an expression.

    Raises: ProtocolError that says where the text is wrong.
    """
    parser = _Parser(text)
    evaluate = parser.choice()
    if parser.token:
        raise parser.wrong("the end")
    return evaluate


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._kind = ""
        self._start = 0
        self.token = ""
        self._advance()

    def wrong(self, expected: str) -> ProtocolError:
        """An error about the present token."""
        place = f"{self.token!r} at column {self._start + 1}" if self.token else "the end"
        return ProtocolError("local", f"expression {self._text!r}: expected {expected}, got {place}")

    def _advance(self) -> str:
        """Goes to the next token; returns the one that was present."""
        token = self.token
        rest = self._text[self._offset :]
        self._start = self._offset + len(rest) - len(rest.lstrip())
        match = _TOKEN.match(self._text, self._offset)
        if match is None:
            self.token, self._kind = rest.strip(), "" if not rest.strip() else "unknown"
            self._offset = len(self._text)
        else:
            self.token, self._kind, self._offset = match[0].strip(), match.lastgroup or "", match.end()
        return token

    def _accept(self, *tokens: str) -> str:
        return self._advance() if self.token in tokens and self._kind in ("sign", "name") else ""

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self.wrong(repr(token))

    def choice(self) -> Evaluate:
        """``a ? b : c``."""
        condition = self._either()
        if not self._accept("?"):
            return condition
        yes = self.choice()
        self._expect(":")
        no = self.choice()
        return lambda request: yes(request) if condition(request) else no(request)

    def _either(self) -> Evaluate:
        operands = [self._both()]
        while self._accept("||", "or"):
            operands.append(self._both())
        return operands[0] if len(operands) == 1 else lambda request: any(part(request) for part in operands)

    def _both(self) -> Evaluate:
        operands = [self._comparison()]
        while self._accept("&&", "and"):
            operands.append(self._comparison())
        return operands[0] if len(operands) == 1 else lambda request: all(part(request) for part in operands)

    def _comparison(self) -> Evaluate:
        left = self._binary(_SUMS, lambda: self._binary(_PRODUCTS, self._unary))
        negated = bool(self._accept("not"))
        operator = self._accept(*_COMPARISONS, "matches")
        if not operator:
            if negated:
                raise self.wrong("in, matches, contains, startsWith or endsWith")
            return left
        compared = self._matches(left) if operator == "matches" else self._compared(operator, left)
        return (lambda request: not compared(request)) if negated else compared

    def _compared(self, operator: str, left: Evaluate) -> Evaluate:
        compare = _COMPARISONS[operator]
        right = self._binary(_SUMS, lambda: self._binary(_PRODUCTS, self._unary))
        return lambda request: compare(left(request), right(request))

    def _matches(self, left: Evaluate) -> Evaluate:
        if self._kind != "text":
            raise self.wrong("a regular expression in quotes")
        source = _unquote(self._advance())
        try:
            pattern = re.compile(source)
        except re.error as failure:
            raise ProtocolError("local", f"regular expression {source!r}: {failure}") from failure
        return lambda request: pattern.search(left(request)) is not None

    def _binary(self, operators: dict[str, Callable[[Any, Any], Any]], operand: Callable[[], Evaluate]) -> Evaluate:
        left = operand()
        while operator := self._accept(*operators):
            left = _applied(operators[operator], left, operand())
        return left

    def _unary(self) -> Evaluate:
        if self._accept("!", "not"):
            inner = self._unary()
            return lambda request: not inner(request)
        if self._accept("-"):
            inner = self._unary()
            return lambda request: -inner(request)
        return self._primary()

    def _primary(self) -> Evaluate:
        if self._accept("("):
            inner = self.choice()
            self._expect(")")
            return inner
        if self._accept("["):
            items = self._items("]")
            return lambda request: [item(request) for item in items]
        kind = self._kind
        if kind == "number":
            number = float(self.token) if "." in self.token else int(self.token)
            self._advance()
            return lambda _request: number
        if kind == "text":
            text = _unquote(self._advance())
            return lambda _request: text
        if kind != "name":
            raise self.wrong("a value")
        if self.token in ("true", "false"):
            truth = self._advance() == "true"
            return lambda _request: truth
        return self._call()

    def _call(self) -> Evaluate:
        name = self.token
        if name not in _REQUEST and name not in _FUNCTIONS:
            raise self.wrong(f"one of {', '.join(sorted((*_REQUEST, *_FUNCTIONS)))}")
        self._advance()
        self._expect("(")
        arguments = self._items(")")
        expected, function = _FUNCTIONS.get(name, (0, None))
        if len(arguments) != expected:
            raise ProtocolError("local", f"expression {self._text!r}: {name} takes {count(expected, 'argument')}")
        if function is None:
            return _REQUEST[name]
        return lambda request: function(*[argument(request) for argument in arguments])

    def _items(self, end: str) -> list[Evaluate]:
        items: list[Evaluate] = []
        if self._accept(end):
            return items
        while True:
            items.append(self.choice())
            if not self._accept(","):
                break
        self._expect(end)
        return items


def _applied(function: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda request: function(left(request), right(request))


def _unquote(token: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), token[1:-1])
