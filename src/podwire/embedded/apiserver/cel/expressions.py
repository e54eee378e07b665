"""Compiles and evaluates expressions.

The library is the Python binding of CEL for C++ (``cel-expr-python``), imported when the first expression is compiled.
Every expression is compiled twice: first with Kubernetes' types, which finds mistakes, then with the types that values
have at run time (see :mod:`podwire.embedded.apiserver.cel.functions`). The library stops an evaluation after 10,000
iterations of comprehensions. A compilation takes about 0.1 ms, an evaluation about 5 us.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver.cel.functions import FUNCTIONS, OPAQUE, Signature

_CODE = re.compile(r"^[A-Z_]+: ")
_TRAILER = re.compile(r" \[[A-Z_]+\]$")
_LINE = re.compile(r"(<input>):(\d+):")
_KEY = re.compile(r'Key not found in map : "(.*)"')
_OVERLOAD = re.compile(r"No matching overloads found(?: : )?")
_OPAQUE_AT_RUN = "map(string,dyn)"
_HAS, _VALUE = "__present", "__value"


class CompileError(ValueError):
    """The expression is wrong; the text says where, in lines and columns."""


class EvaluationError(ValueError):
    """The expression has no value for these variables."""


def _message(failure: object) -> str:
    text = _TRAILER.sub("", _CODE.sub("", str(failure)))
    if found := _KEY.search(text):
        return f"no such key: {found[1]}"
    if text.startswith("No matching overloads found"):
        return _OVERLOAD.sub("no such overload: ", text).rstrip(": ")
    return {"divide by zero": "division by zero"}.get(text, text)


def _type(text: str, *, checked: bool) -> Any:
    """The library's type for ``list(int)``, ``map(string,dyn)``, ``Quantity``."""
    from cel_expr_python import cel  # Loaded with the first expression: 15 MB that most clusters never need.

    if text in OPAQUE:
        return cel.Type.AbstractType(OPAQUE[text]) if checked else _type(_OPAQUE_AT_RUN, checked=False)
    if text.startswith("list("):
        return cel.Type.List(_type(text[5:-1], checked=checked))
    if text.startswith("map("):
        key, _, value = text[4:-1].partition(",")
        return cel.Type.Map(_type(key, checked=checked), _type(value, checked=checked))
    return getattr(cel.Type, text.upper())


def _at_run(form: Signature) -> Signature:
    """The form with the types of values at run time: lists of all items, and opaque values, are of one type."""
    kinds = ["list(dyn)" if text.startswith("list(") else text for text in form.parameters]
    parameters = tuple(_OPAQUE_AT_RUN if text in OPAQUE else text for text in kinds)
    return msgspec.structs.replace(form, parameters=parameters, result="dyn")


@functools.cache
def _functions(*, checked: bool) -> list[Any]:
    from cel_expr_python import cel

    overloads: dict[str, dict[str, Any]] = {}
    for form in FUNCTIONS:
        shown = form if checked else _at_run(form)
        label = f"{shown.name}({','.join(shown.parameters)})" + "." * shown.method
        types = [_type(text, checked=checked) for text in shown.parameters]
        result = _type(shown.result, checked=checked)
        overloads.setdefault(shown.name, {})[label] = cel.Overload(label, result, types, shown.method, shown.call)
    return [cel.FunctionDecl(name, list(found.values())) for name, found in overloads.items()]


@functools.cache
def _environment(variables: tuple[tuple[str, str], ...], *, checked: bool) -> Any:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_encoders, ext_math, ext_optional, ext_strings

    extensions = [
        ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_math.ExtMath(), ext_bindings.ExtBindings(),
        ext_encoders.ExtEncoders(),
    ]  # fmt: skip
    types = {name: _type(text, checked=checked) for name, text in variables}
    return cel.NewEnv(variables=types, extensions=extensions, functions=_functions(checked=checked))


class Expression:
    """A compiled expression."""

    __slots__ = ("_optional", "_program", "result", "source")

    def __init__(self, source: str, variables: Mapping[str, str], optional: str = "") -> None:
        """``optional`` names a variable that the expression sees as an optional.

        Raises: CompileError.
        """
        self.source = source
        self._optional = optional
        given, text = dict(variables), source
        if optional:
            given = {**given, _VALUE: given.pop(optional), _HAS: "bool"}
            # The prefix stands on a line of its own, so that columns in messages are those of the source.
            text = f"cel.bind({optional}, {_HAS} ? optional.of({_VALUE}) : optional.none(), (\n{source}\n))"
        names = tuple(sorted(given.items()))
        checking, running = _environment(names, checked=True), _environment(names, checked=False)
        try:
            checked = checking.compile(text)
            self._program = running.compile(text)
        except RuntimeError as failure:
            problem = _message(failure)
            if optional:
                problem = _LINE.sub(lambda found: f"{found[1]}:{int(found[2]) - 1}:", problem)
            raise CompileError(problem) from failure
        self.result: str = checked.return_type().name().lower()
        """The type of the value: ``bool``, ``string``, ``dyn``."""

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """The value as Python's types.

        Raises: EvaluationError.
        """
        from cel_expr_python import cel

        data = dict(variables)
        if self._optional:
            data[_HAS] = self._optional in data
            data[_VALUE] = data.pop(self._optional, None)
        try:
            value = self._program.eval(data=data)
            if value.type() == cel.Type.ERROR:
                raise EvaluationError(_message(value.plain_value()))
            return value.plain_value()
        except RuntimeError as failure:
            raise EvaluationError(_message(failure)) from failure


def compiled(source: str, variables: Mapping[str, str], wanted: str, optional: str = "") -> Expression:
    """An expression whose value has the type ``wanted``, ``bool`` or ``string``.

    Raises: CompileError.
    """
    expression = Expression(source, variables, optional)
    if expression.result not in (wanted, "dyn"):
        raise CompileError(f"must evaluate to {wanted}")
    return expression
