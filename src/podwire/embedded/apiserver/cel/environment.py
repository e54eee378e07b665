"""The two environments of the library: one checks expressions, the other one runs them.

Both have Kubernetes' functions and the library's extensions. The first knows objects as messages (see
:mod:`podwire.embedded.apiserver.cel.messages`) and finds mistakes; the second takes values as maps and checks nothing.
Each is made once, with the first expression. The library is imported then, too: it needs 15 MB.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

from podwire.embedded.apiserver.cel.functions import FUNCTIONS, OPAQUE
from podwire.embedded.apiserver.cel.messages import MessageTypes, parameters
from podwire.embedded.apiserver.cel.signature import Signature

_EXTENSIONS = (
    "optional", "strings", "math", "lists", "sets", "bindings", "encoders", "two-var-comprehensions", "regex",
)  # fmt: skip
_MODULES = ("google", "google.protobuf", "google.protobuf.message_factory")

MESSAGES = MessageTypes(dict(OPAQUE.values()))
"""Every object type that an expression was checked with."""


@cache
def checking() -> Any:
    """The environment that finds mistakes."""
    from cel_expr_python import cel  # Loaded with the first expression: most clusters never need it.

    with _message_factory():
        functions = cel.CelExtension("kubernetes", _declarations(checked=True))
        return cel.NewEnv(descriptor_pool=MESSAGES, config=_config(), extensions=[functions])


@cache
def running() -> Any:
    """The environment that evaluates."""
    from cel_expr_python import cel

    return cel.NewEnv(config=_config(), extensions=[cel.CelExtension("kubernetes", _declarations(checked=False))])


def _config() -> Any:
    from cel_expr_python import cel

    listed = "".join(f"- name: {name}\n" for name in _EXTENSIONS)
    return cel.NewEnvConfigFromYaml(f"name: kubernetes\nextensions:\n{listed}")


@contextlib.contextmanager
def _message_factory() -> Iterator[None]:
    """Gives the library the module ``google.protobuf.message_factory`` where it is not installed.

    The library ends the process when it cannot import that module. The library needs it only to turn messages into
    Python objects. No value here is a message, so an empty module is enough.
    """
    try:
        import google.protobuf.message_factory  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        missing = [name for name in _MODULES if name not in sys.modules]
        for name in missing:
            module = sys.modules[name] = ModuleType(name)
            module.__path__ = []
            module.GetMessageClass = None  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for name in missing:
                del sys.modules[name]
    else:
        yield


def type_of(text: str) -> Any:
    """The library's type of ``list(int)``, ``map(string,dyn)``, or of a message."""
    from cel_expr_python import cel

    inner = [type_of(parameter) for parameter in parameters(text)]
    if text.startswith("list("):
        return cel.Type.List(*inner)
    if text.startswith("map("):
        return cel.Type.Map(*inner)
    if text.startswith("optional("):
        return cel.Type.AbstractType("optional_type", inner)
    return getattr(cel.Type, text.upper(), None) or cel.Type(text)


def checks(decide: Callable[[dict[str, Any], str], dict[str, Any]]) -> list[Any]:
    """The function ``check`` of one evaluation."""
    from cel_expr_python import cel

    return [cel.Function("check", [type_of(_AT_RUN), cel.Type.STRING], True, decide, cel.Type.DYN)]  # noqa: FBT003


_AT_RUN = "map(string,dyn)"


def _at_run(form: Signature) -> Signature:
    """The form with the types of values at run time: lists of all items, and opaque values, are of one type."""
    kinds = ["list(dyn)" if text.startswith("list(") else text for text in form.parameters]
    parameters = tuple(_AT_RUN if text in OPAQUE else text for text in kinds)
    return msgspec.structs.replace(form, parameters=parameters, result="dyn")


def _checked(form: Signature) -> Signature:
    kinds = [OPAQUE[text][0] if text in OPAQUE else text for text in form.parameters]
    return msgspec.structs.replace(form, parameters=tuple(kinds), result=_named(form.result))


def _named(text: str) -> str:
    if text.startswith("optional("):
        return f"optional({_named(parameters(text)[0])})"
    return OPAQUE[text][0] if text in OPAQUE else text


def _declarations(*, checked: bool) -> list[Any]:
    from cel_expr_python import cel

    overloads: dict[str, dict[str, Any]] = {}
    for form in FUNCTIONS:
        if form.internal and checked:
            continue
        shown = _checked(form) if checked else _at_run(form)
        label = f"{shown.name}({','.join(shown.parameters)})" + "." * shown.method
        types = [type_of(text) for text in shown.parameters]
        call = None if checked else shown.call
        overloads.setdefault(shown.name, {})[label] = cel.Overload(
            label, type_of(shown.result), types, shown.method, call
        )
    return [cel.FunctionDecl(name, list(by_signature.values())) for name, by_signature in overloads.items()]
