"""The plugin ValidatingAdmissionPolicy.

Every binding of a policy decides for itself what a failed validation does: ``Deny`` refuses the request, ``Warn`` warns
the client, ``Audit`` adds it to the annotations of the audit event. The audit annotations of a policy are added there,
too. Source: ``k8s.io/apiserver/pkg/admission/plugin/policy/validating``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.policies.definitions import BoundPolicy, Object
from podwire.embedded.apiserver.admission.policies.hooks import Invocation, PolicyHooks
from podwire.embedded.apiserver.admission.policies.programs import CompiledPolicies
from podwire.embedded.apiserver.admission.variables import RequestVariables
from podwire.embedded.apiserver.admission.versions import in_version
from podwire.embedded.apiserver.cel.composition import VariableScope
from podwire.embedded.apiserver.cel.conditions import ConditionError, all_hold, failure_of
from podwire.embedded.apiserver.cel.expressions import EvaluationError, Expression
from podwire.embedded.apiserver.cel.policies import ValidatingProgram, compile_validating
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.waits import Waits, remainder
from podwire.errors import ApiError

POLICIES = "admissionregistration.k8s.io/validatingadmissionpolicies"
BINDINGS = "admissionregistration.k8s.io/validatingadmissionpolicybindings"

_CODES = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413, "Invalid": 422}
_MOST_MESSAGE_BYTES = 5 * 1024
_MOST_ANNOTATION_BYTES = 10 * 1024
VALIDATION_FAILURE = "validation.policy.admission.k8s.io/validation_failure"
"""The annotation of audit events with the failed validations, as a list in JSON."""


class Denial(NamedTuple):
    """Why a policy refuses a request; ``audit`` for a failed annotation, which no action of a binding softens."""

    message: str
    reason: str = ""
    audit: bool = False
    place: int = 0
    """The index of the expression among the validations."""


class AuditRecord:
    """What policies say about one request, for the annotations of its audit event."""

    def __init__(self) -> None:
        self._failures: list[Object] = []
        self._values: dict[str, dict[str, None]] = {}

    def fail(self, met: Invocation, denial: Denial) -> None:
        """Adds a failed validation."""
        self._failures.append(
            {
                "message": denial.message,
                "policy": met.policy.name,
                "binding": met.binding.name,
                "expressionIndex": denial.place,
                "validationActions": list(met.binding.spec.validation_actions),
            }
        )

    def say(self, policy: str, key: str, text: str) -> None:
        """Adds the value of an audit annotation; equal values of several bindings are one."""
        trimmed = text.strip()
        if trimmed:
            cut = trimmed.encode()[:_MOST_ANNOTATION_BYTES].decode("utf-8", "ignore")
            self._values.setdefault(f"{policy}/{key}", {})[cut] = None

    def publish(self, request: AdmissionRequest) -> None:
        """Adds the annotations to the request."""
        if self._failures:
            request.call.annotate(VALIDATION_FAILURE, msgspec.json.encode(self._failures).decode())
        for key, texts in self._values.items():
            request.call.annotate(key, ", ".join(texts))


class ValidatingAdmissionPolicy:
    """Lets policies refuse requests."""

    def __init__(self, context: AdmissionContext) -> None:
        self._context = context
        self._hooks = PolicyHooks(context, POLICIES, BINDINGS)
        self._programs = CompiledPolicies(compile_validating)

    def validate(self, request: AdmissionRequest) -> Waits[None] | None:
        """Evaluates the policies that apply to the request.

        Raises: ApiError with the first denial.
        """
        policies = self._hooks.candidates(request)
        return remainder(self._validate(request, policies)) if policies else None

    def _validate(self, request: AdmissionRequest, policies: tuple[BoundPolicy, ...]) -> Waits[None]:
        denied: list[tuple[Invocation, Denial]] = []
        record = AuditRecord()
        variables: dict[ResourceKind, RequestVariables | str] = {}
        for met in (yield from self._hooks.invocations(policies, request)):
            if met.kind not in variables:
                variables[met.kind] = yield from self._variables(request, met.kind)
            scope_or_problem = met.problem or variables[met.kind]
            if isinstance(scope_or_problem, str):
                if met.policy.spec.failure_policy != "Ignore":
                    denied.append((met, Denial(scope_or_problem)))
                continue
            for denial in self._denials(met, scope_or_problem.with_param(met.param), record):
                actions = ("Deny",) if denial.audit else met.binding.spec.validation_actions
                if "Deny" in actions:
                    denied.append((met, denial))
                if "Audit" in actions:
                    record.fail(met, denial)
                if "Warn" in actions:
                    request.call.warnings.append(
                        f"Validation failed for ValidatingAdmissionPolicy '{met.policy.name}' with binding "
                        f"'{met.binding.name}': {denial.message}"
                    )
        record.publish(request)
        if denied:
            raise _refusal(request, *denied[0])

    def _variables(self, request: AdmissionRequest, kind: ResourceKind) -> Waits[RequestVariables | str]:
        """The variables of expressions, in the version of ``kind``, or the reason why they cannot be made."""
        try:
            shown = yield from in_version(request, kind, self._context)
        except ApiError as failure:
            return f"failed to convert object version: {failure.message}"
        return RequestVariables(shown, kind, self._context)

    def _denials(self, met: Invocation, variables: RequestVariables, record: AuditRecord) -> Iterator[Denial]:
        ignore = met.policy.spec.failure_policy == "Ignore"
        program = self._programs.program(met.policy)
        if isinstance(program, str):
            if not ignore:
                yield Denial(program)
            return
        try:
            if not all_hold(program.conditions, variables, variables.decide, ignore=ignore):
                return
        except ConditionError as failure:
            yield Denial(str(failure))
            return
        scope = program.composition.scope(variables, variables.decide)
        yield from _failed_validations(program, scope, ignore=ignore)
        yield from _annotations(met, program, scope, record)


def _failed_validations(program: ValidatingProgram, scope: VariableScope, *, ignore: bool) -> Iterator[Denial]:
    for index, validation in enumerate(program.validations):
        try:
            holds = scope.evaluate(validation.expression)
        except EvaluationError as failure:
            if not ignore:
                yield Denial(failure_of(validation.expression, failure), place=index)
            continue
        if holds is not True:
            message = _evaluated_message(validation.message_expression, scope) or validation.message
            yield Denial(message, validation.reason, place=index)


def _evaluated_message(expression: Expression | None, scope: VariableScope) -> str:
    """The text of a ``messageExpression``; empty when it has no usable result."""
    if expression is None:
        return ""
    try:
        value = scope.evaluate(expression)
    except EvaluationError:
        return ""
    text = value.strip() if isinstance(value, str) else ""
    return "" if "\n" in text or len(text.encode()) > _MOST_MESSAGE_BYTES else text


def _annotations(
    met: Invocation, program: ValidatingProgram, scope: VariableScope, record: AuditRecord
) -> Iterator[Denial]:
    """Records the audit annotations of a policy; yields why one has no value."""
    for source, expression in zip(met.policy.spec.audit_annotations, program.annotations, strict=True):
        try:
            value = scope.evaluate(expression)
        except EvaluationError as failure:
            if met.policy.spec.failure_policy != "Ignore":
                yield Denial(failure_of(expression, failure), audit=True)
            continue
        if isinstance(value, str):
            record.say(met.policy.name, str(source["key"]), value)
        elif value is not None:
            problem = f"valueExpression '{expression.source}' resulted in unsupported return type"
            yield Denial(f"{problem}. Return type must be either string or null.", audit=True)


def _refusal(request: AdmissionRequest, met: Invocation, denial: Denial) -> ApiError:
    message = (
        f"ValidatingAdmissionPolicy '{met.policy.name}' with binding '{met.binding.name}' denied request: "
        f"{denial.message}"
    )
    refused = failures.forbidden(request.call.kind, request.name, message)
    reason = denial.reason or "Invalid"
    details: Object = {**refused.details, "causes": [{"message": message}]}
    return ApiError(_CODES.get(reason, 422), reason, refused.message, details)
