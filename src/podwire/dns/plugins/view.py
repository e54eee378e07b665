"""``view NAME { expr EXPRESSION }``: a condition for requests of a server block. Pure.

The expressions are those of CoreDNS: comparisons (``==``, ``!=``, ``<``, ...), ``&&``, ``||``, ``!``, ``in``,
``matches``, ``contains``, ``startsWith``, ``endsWith``, lists, texts, numbers, and functions about the request
(``client_ip()``, ``name()``, ``type()``, ``incidr(IP, NETWORK)``, ...). :mod:`podwire.dns.plugins.expressions` parses
them once; evaluation costs about 1 us for each operator.
"""

from typing import Self

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect
from podwire.dns.plugins.expressions import Evaluate, parse_expression
from podwire.dns.plugins.plugin import PluginRequest
from podwire.errors import ProtocolError


class BlockView(msgspec.Struct, frozen=True):
    """The condition of a server block."""

    name: str
    conditions: tuple[Evaluate, ...]

    @classmethod
    def read(cls, directive: Directive) -> Self:
        """The view.

        Raises: ConfigError with the line for an expression that is wrong.
        """
        expect(len(directive.arguments) == 1, directive, "expected a name")
        expect(bool(directive.block), directive, "expected expr and an expression")
        conditions = []
        for option in directive.block:
            expect(option.name == "expr" and bool(option.arguments), option, "expected expr and an expression")
            try:
                conditions.append(parse_expression(" ".join(option.arguments)))
            except ProtocolError as failure:
                raise option.wrong(failure.problem) from failure
        return cls(directive.arguments[0], tuple(conditions))

    def matches(self, request: PluginRequest) -> bool:
        """Whether the server block answers a request; an expression that fails is false."""
        try:
            return all(condition(request) is True for condition in self.conditions)
        except (TypeError, ValueError, ArithmeticError):
            return False
