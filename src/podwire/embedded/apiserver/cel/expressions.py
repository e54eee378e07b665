"""Compiles and evaluates expressions.

The library is the Python binding of CEL for C++ (``cel-expr-python``), imported with the first expression, which costs
25 ms and 23 MB. Expressions of the definitions that every cluster has are compiled when they are evaluated. An
expression is compiled twice: first with the types of its variables, to find mistakes, then without types, to run it
(see :mod:`podwire.embedded.apiserver.cel.environment`). One environment checks all expressions: the variables are bound
around the expression, on separate lines, so that positions in messages are those of the source. The library stops an
evaluation after 10,000 iterations of comprehensions. A compilation takes about 0.5 ms, an evaluation about 20 us.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from podwire.embedded.apiserver.cel import environment, messages, regexes, sources

_CODE = re.compile(r"^[A-Z_]+: ")
_TRAILER = re.compile(r" \[[A-Z_]+\]$")
_LINE = re.compile(r"(<input>):(\d+):")
_NAME = re.compile(r"\w+")
_KEY = re.compile(r'Key not found in map : "(.*)"')
_FIELD = re.compile(r"(undefined field '[^']*') not found in struct '[^']*'")
_OVERLOAD = re.compile(r"No matching overloads found(?: : )?")
_CORRECT: Mapping[tuple[str, str], str] = {
    ("self.start < self.end", messages.digest({"start": "int", "end": "int"})): "bool"
}
"""The type of the value of expressions that are known to be right, by their source and the fields of ``self``: those
of ClusterNetworkPolicy."""
_HAS, _VALUE = "__present", "__value"

Check = Callable[[dict[str, Any], str], dict[str, Any]]
"""Decides about an authorization check of an expression: the check and the verb in, the decision out."""


class CompileError(ValueError):
    """The expression is wrong; the text says where, in lines and columns."""


class EvaluationError(ValueError):
    """The expression has no value for these variables."""


def _message(failure: object) -> str:
    text = _TRAILER.sub("", _CODE.sub("", str(failure)))
    if match := _KEY.search(text):
        return f"no such key: {match[1]}"
    if text.startswith("No matching overloads found"):
        return _OVERLOAD.sub("no such overload: ", text).rstrip(": ")
    return {"divide by zero": "division by zero"}.get(text, text)


def _problem(failure: object) -> str:
    """The message of a failure with the source's line numbers: the variables are bound on an additional line before."""
    text = _LINE.sub(lambda match: f"{match[1]}:{int(match[2]) - 1}:", _message(failure))
    return messages.shown(_FIELD.sub(r"\1", text))


def check(source: str, variables: Mapping[str, str]) -> str:
    """The type of an expression's value, as text: ``bool``, ``list(string)``, the name of a message.

    Raises: CompileError.
    """
    bound = "".join(f"cel.bind({name}, {messages.literal(text)}, " for name, text in variables.items())
    text = f"{bound}(\n{source}\n{')' * (len(variables) + 1)}"
    try:
        return _written(environment.checking().compile(text).return_type().name())
    except RuntimeError as failure:
        raise CompileError(_problem(failure)) from failure


def _written(name: str) -> str:
    """A type's name as this package writes types: ``LIST<MAP<STRING, INT>>`` is ``list(map(string,int))``."""
    symbols = re.findall(r"[^<>,\s]+|[<>,]", name)
    text = "".join(
        {"<": "(", ">": ")"}.get(symbol, symbol.lower() if symbol.isupper() else symbol) for symbol in symbols
    )
    return "optional" + text.removeprefix("optional_type") if text.startswith("optional_type") else text


def _parsed(source: str) -> Any:
    """The program of an expression. Raises: CompileError for what is no expression."""
    try:
        return environment.running().compile(sources.runnable(source), disable_check=True)
    except RuntimeError as failure:
        raise CompileError(_message(failure)) from failure


def _check_patterns(source: str) -> None:
    """Checks the regular expressions that an expression names as literals. Raises: CompileError."""
    for literal, line, column in sources.constant_patterns(source):
        pattern = _parsed(literal).eval(data={}).plain_value()
        problem = regexes.problem(pattern) if isinstance(pattern, str) else ""
        if problem:
            raise CompileError(f"ERROR: <input>:{line}:{column}: {_message(problem)}")


class Expression:
    """A compiled expression."""

    __slots__ = ("_checked", "_optional", "_program", "_used", "_uses_authorizer", "_variables", "result", "source")

    def __init__(self, source: str, variables: Mapping[str, str], optional: str = "", checked: str = "") -> None:
        """``variables`` are names and types; ``optional`` names the variable that has the type optional.

        ``checked`` is the text to check, if it differs from ``source``. Raises: CompileError.
        """
        self.source = source
        self._checked = checked or source
        self._optional = optional
        self._variables = dict(variables)
        self._program: Any = None
        names_in_source = frozenset(_NAME.findall(source))
        self._used = tuple(name for name in variables if name in names_in_source)
        self._uses_authorizer = "check" in names_in_source
        known = None
        if not optional and tuple(variables) == ("self",):
            known = _CORRECT.get((source, variables["self"].rpartition("_")[2]))
        self.result: str = known or self._compile()
        """The type of the value: ``bool``, ``string``, ``dyn``."""

    @property
    def compiled(self) -> bool:
        """Whether the library has seen the expression."""
        return self._program is not None

    def _compile(self) -> str:
        """Compiles the expression; the type of its value."""
        program = _parsed(self.source)  # Refuses text that would end the binding of the variables around it.
        typed = dict(self._variables)
        if optional := self._optional:
            typed[optional] = f"optional({typed[optional]})"
            choice = f"{_HAS} ? optional.of({_VALUE}) : optional.none()"
            program = _parsed(f"cel.bind({optional}, {choice}, (\n{self.source}\n))")
        result = check(self._checked, typed)
        _check_patterns(self.source)
        self._program = program
        return result

    def evaluate(self, variables: Mapping[str, Any], decide: Check | None = None) -> Any:
        """The value as Python's types. ``check`` of an authorizer calls ``decide``.

        Only the variables that the expression names are read. Raises: EvaluationError.
        """
        from cel_expr_python import cel

        if self._program is None:
            self._compile()
        data = {name: variables[name] for name in self._used if name in variables}
        if self._optional:
            data[_HAS] = self._optional in data
            data[_VALUE] = data.pop(self._optional, None)
        functions = environment.checks(decide) if self._uses_authorizer and decide is not None else None
        try:
            value = self._program.eval(data=data, functions=functions)
            if value.type() == cel.Type.NULL:
                return None
            plain_value = value.plain_value()
        except (RuntimeError, TypeError) as failure:
            raise EvaluationError(_message(failure)) from failure
        if value.type() == cel.Type.ERROR:
            raise EvaluationError(_message(plain_value))
        _hold_nones(plain_value)
        return plain_value


def _hold_nones(value: Any) -> None:
    """Increments the reference count of each None in a list or map.

    The library (0.1.3) returns them without a reference: after some thousands, Python would end the process.
    """
    if value is None:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    elif isinstance(value, list):
        for item in value:
            _hold_nones(item)
    elif isinstance(value, dict):
        for item in value.values():
            _hold_nones(item)


def compiled(source: str, variables: Mapping[str, str], expected_type: str) -> Expression:
    """An expression whose value has the expected type; ``dyn`` stands for any type. The last 1,000 are kept.

    Raises: CompileError.
    """
    return _compiled(source, tuple(variables.items()), expected_type)


@lru_cache(maxsize=1000)
def _compiled(source: str, variables: tuple[tuple[str, str], ...], expected_type: str) -> Expression:
    try:
        expression = Expression(source, dict(variables))
    except CompileError as failure:
        raise CompileError(f"compilation failed: {failure}") from failure
    if expected_type not in ("dyn", expression.result):
        raise CompileError(f"must evaluate to {expected_type} but got {messages.shown(expression.result)}")
    return expression
