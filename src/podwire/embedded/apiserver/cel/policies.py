"""The expressions of admission policies, compiled.

Source: ``k8s.io/apiserver/pkg/admission/plugin/policy`` (``validating/plugin.go``, ``mutating/compilation.go``).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from podwire.embedded.apiserver.cel import requests
from podwire.embedded.apiserver.cel.composition import Composition
from podwire.embedded.apiserver.cel.conditions import compile_conditions
from podwire.embedded.apiserver.cel.expressions import CompileError, Expression, compiled
from podwire.embedded.apiserver.cel.objects import compile_mutation

ANNOTATION_TYPES = ("string", "null", "dyn")
"""The types that an audit annotation may have."""


class PolicySource(Protocol):
    """The spec of a policy."""

    @property
    def param_kind(self) -> object | None:
        """The kind of the parameters."""

    @property
    def match_conditions(self) -> Iterable[Mapping[str, Any]]:
        """With ``expression``."""

    @property
    def variables(self) -> Iterable[Mapping[str, Any]]:
        """With ``name`` and ``expression``."""

    @property
    def validations(self) -> Iterable[Mapping[str, Any]]:
        """With ``expression``, ``messageExpression``, ``message`` and ``reason``."""

    @property
    def audit_annotations(self) -> Iterable[Mapping[str, Any]]:
        """With ``valueExpression``."""

    @property
    def mutations(self) -> Iterable[Mapping[str, Any]]:
        """With ``patchType`` and the expression under ``applyConfiguration`` or ``jsonPatch``."""


class CompiledValidation(msgspec.Struct, frozen=True):
    """A validation; ``message`` is used when there is no ``message_expression``."""

    expression: Expression
    message_expression: Expression | None
    message: str
    reason: str


class ValidatingProgram(msgspec.Struct, frozen=True):
    """All expressions of a policy."""

    conditions: tuple[Expression, ...]
    composition: Composition
    validations: tuple[CompiledValidation, ...]
    annotations: tuple[Expression, ...]


def compile_validating(spec: PolicySource) -> ValidatingProgram:
    """The expressions of a valid policy.

    Raises: CompileError or ConditionError.
    """
    params = spec.param_kind is not None
    composition = compose(spec.variables, params=params)
    full = composition.types(requests.variables(params=params))
    plain = composition.types(requests.variables(params=params, authorizer=False))
    validations = []
    for item in spec.validations:
        source, message = str(item["expression"]), str(item.get("messageExpression") or "")
        validations.append(
            CompiledValidation(
                compiled(source, full, "bool"),
                compiled(message, plain, "string") if message else None,
                str(item.get("message") or "").strip() or f"failed expression: {source.strip()}",
                str(item.get("reason") or "Invalid"),
            )
        )
    annotations = tuple(annotation(item, full) for item in spec.audit_annotations)
    return ValidatingProgram(
        compile_conditions(spec.match_conditions, params=params), composition, tuple(validations), annotations
    )


class CompiledMutation(msgspec.Struct, frozen=True):
    """A mutation; ``patch_type`` is ``ApplyConfiguration`` or ``JSONPatch``."""

    expression: Expression
    patch_type: str


class MutatingProgram(msgspec.Struct, frozen=True):
    """All expressions of a policy."""

    conditions: tuple[Expression, ...]
    composition: Composition
    mutations: tuple[CompiledMutation, ...]


FIELDS = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}
"""The field with the expression, by the type of the patch."""


def compile_mutating(spec: PolicySource) -> MutatingProgram:
    """The expressions of a valid policy.

    Raises: CompileError or ConditionError.
    """
    params = spec.param_kind is not None
    composition = compose(spec.variables, params=params)
    types = composition.types(requests.variables(params=params))
    mutations = []
    for item in spec.mutations:
        patch_type = str(item["patchType"])
        source = str(item[FIELDS[patch_type]]["expression"])
        mutations.append(CompiledMutation(compile_mutation(source, types, patch_type), patch_type))
    return MutatingProgram(compile_conditions(spec.match_conditions, params=params), composition, tuple(mutations))


def compose(variables: Iterable[Mapping[str, Any]], *, params: bool) -> Composition:
    """The variables of a policy.

    Raises: CompileError.
    """
    composition = Composition()
    for item in variables:
        composition.add(str(item["name"]), str(item["expression"]), requests.variables(params=params))
    return composition


def annotation(item: Mapping[str, Any], types: Mapping[str, str]) -> Expression:
    """The expression of an audit annotation.

    Raises: CompileError.
    """
    expression = compiled(str(item["valueExpression"]).strip(), types, "dyn")
    if expression.result not in ANNOTATION_TYPES:
        raise CompileError(f"must evaluate to one of [string null_type] but got {expression.result}")
    return expression
