"""Variables that a policy defines: ``variables.NAME``, each evaluated once, and only for an expression that names it.

A variable that has no value makes an expression fail only where the expression uses it. Source:
``k8s.io/apiserver/pkg/admission/plugin/cel/composition.go``.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any

from podwire.embedded.apiserver.cel import sources
from podwire.embedded.apiserver.cel.environment import MESSAGES
from podwire.embedded.apiserver.cel.expressions import Check, EvaluationError, Expression, compiled
from podwire.embedded.apiserver.cel.times import wrapped

NAME = "variables"
_MISSING = re.compile(r"no such key: (\w+)")


def names_in(source: str, known: Iterable[str]) -> tuple[str, ...]:
    """The variables that an expression may use."""
    if NAME not in source:
        return ()
    token_list = [token for token in sources.tokens(source) if not token.isspace() and not token.startswith("//")]
    names: dict[str, None] = {}
    for index, token in enumerate(token_list):
        if token != NAME:
            continue
        after = token_list[index + 1 : index + 4]
        if after[:1] != ["."]:
            return tuple(known)
        names[after[2] if after[1:2] == ["?"] and len(after) > 2 else after[-1] if len(after) == 2 else after[1]] = None
    return tuple(name for name in known if name in names)


class Composition:
    """The variables of one policy."""

    def __init__(self) -> None:
        self._expressions: dict[str, Expression] = {}
        self._types: dict[str, str] = {}

    def add(self, name: str, source: str, types: Mapping[str, str]) -> None:
        """Adds a variable, which later ones may use.

        Raises: CompileError.
        """
        expression = compiled(source, self.types(types), "dyn")
        self._expressions[name] = expression
        self._types[name] = "dyn" if expression.result.startswith("optional(") else expression.result

    def types(self, types: Mapping[str, str]) -> dict[str, str]:
        """The types of all that an expression may use."""
        return {**types, NAME: MESSAGES.declare(NAME, self._types)} if self._expressions else dict(types)

    def scope(self, values: Mapping[str, Any], decide: Check) -> "VariableScope":
        """The variables for one request."""
        return VariableScope(self._expressions, values, decide)


class VariableScope:
    """The values for one request, with the variables that were evaluated so far."""

    def __init__(self, expressions: Mapping[str, Expression], values: Mapping[str, Any], decide: Check) -> None:
        self._expressions = expressions
        self._values = values
        self._decide = decide
        self._known: dict[str, Any] = {}
        self._all: Mapping[str, Any] = ChainMap({NAME: self._known}, values)  # type: ignore[arg-type]  # is read only
        self._failed: dict[str, str] = {}

    def evaluate(self, expression: Expression) -> Any:
        """The value of an expression.

        Raises: EvaluationError.
        """
        if not self._expressions:
            return expression.evaluate(self._values, self._decide)
        for name in names_in(expression.source, self._expressions):
            self._settle(name)
        try:
            return expression.evaluate(self._all, self._decide)
        except EvaluationError as failure:
            match = _MISSING.fullmatch(str(failure))
            if match is not None and match[1] in self._failed:
                text = f'composited variable "{match[1]}" fails to evaluate: {self._failed[match[1]]}'
                raise EvaluationError(text) from failure
            raise

    def _settle(self, name: str) -> None:
        if name in self._known or name in self._failed:
            return
        try:
            self._known[name] = wrapped(self.evaluate(self._expressions[name]))
        except EvaluationError as failure:
            self._failed[name] = str(failure)
