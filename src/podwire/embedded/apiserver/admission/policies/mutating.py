"""The plugin MutatingAdmissionPolicy.

A mutation is an apply configuration, merged into the object by the schema of its kind, or a JSON patch. A policy with
``reinvocationPolicy: IfNeeded`` is asked a second time when the object was changed after its first turn. Source:
``k8s.io/apiserver/pkg/admission/plugin/policy/mutating``.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.policies.definitions import BoundPolicy, Object
from podwire.embedded.apiserver.admission.policies.hooks import Invocation, PolicyHooks
from podwire.embedded.apiserver.admission.policies.programs import CompiledPolicies
from podwire.embedded.apiserver.admission.variables import RequestVariables
from podwire.embedded.apiserver.admission.versions import accepted, in_version
from podwire.embedded.apiserver.cel.conditions import ConditionError, all_hold, failure_of
from podwire.embedded.apiserver.cel.expressions import EvaluationError
from podwire.embedded.apiserver.cel.policies import CompiledMutation, compile_mutating
from podwire.embedded.apiserver.patch import json_patch, typed
from podwire.embedded.apiserver.waits import Waits, remainder
from podwire.errors import ApiError, PodwireError

POLICIES = "admissionregistration.k8s.io/mutatingadmissionpolicies"
BINDINGS = "admissionregistration.k8s.io/mutatingadmissionpolicybindings"

_MEMORY = "policies"


class MutationError(PodwireError):
    """A mutation has no value, or its value does not fit the object."""


class PolicyError(NamedTuple):
    """The failure of a policy with ``failurePolicy: Fail``, which refuses the request."""

    met: Invocation
    message: str
    reason: str = "Invalid"


class MutatingAdmissionPolicy:
    """Lets policies change objects."""

    def __init__(self, context: AdmissionContext) -> None:
        self._context = context
        self._hooks = PolicyHooks(context, POLICIES, BINDINGS)
        self._programs = CompiledPolicies(compile_mutating)

    def mutate(self, request: AdmissionRequest) -> Waits[None] | None:
        """Applies the mutations of the policies that apply to the request.

        Raises: ApiError when a policy with ``failurePolicy: Fail`` fails.
        """
        policies = self._hooks.candidates(request)
        return remainder(self._mutate(request, policies)) if policies and request.obj else None

    def _mutate(self, request: AdmissionRequest, policies: tuple[BoundPolicy, ...]) -> Waits[None]:
        """Keeps in ``invoked`` the object after the first run, the policies to run again, and those that ran."""
        memory = request.invoked.setdefault(_MEMORY, {"object": None, "again": set(), "callable": set()})
        if request.repeated and memory["object"] != request.obj:
            memory["again"] |= memory["callable"]
        errors: list[PolicyError] = []
        for met in (yield from self._hooks.invocations(policies, request)):
            if met.problem:
                errors.append(PolicyError(met, met.problem, ""))
                continue
            key = _key(met)
            if request.repeated and key not in memory["again"]:
                continue
            before = request.obj
            errors += yield from self._apply(met, request)
            if request.obj != before:
                memory["again"] |= memory["callable"]
                request.again = True
            if met.policy.spec.reinvocation_policy == "IfNeeded":
                memory["callable"].add(key)
        memory["object"] = request.obj
        refused = [error for error in errors if error.met.policy.spec.failure_policy != "Ignore"]
        if refused:
            raise _refusal(request, refused)

    def _apply(self, met: Invocation, request: AdmissionRequest) -> Waits[list[PolicyError]]:
        """Changes the object of the request; each mutation sees the result of the mutation before."""
        program = self._programs.program(met.policy)
        if isinstance(program, str):
            return [PolicyError(met, program)]
        try:
            shown = yield from in_version(request, met.kind, self._context)
        except ApiError as failure:
            return [PolicyError(met, f"failed to convert object version: {failure.message}")]
        variables = RequestVariables(shown, met.kind, self._context, met.param)
        ignore = met.policy.spec.failure_policy == "Ignore"
        try:
            if not all_hold(program.conditions, variables, variables.decide, ignore=ignore):
                return []
        except ConditionError as failure:
            return [PolicyError(met, str(failure))]
        errors = []
        for mutation in program.mutations:
            try:
                shown = yield from in_version(request, met.kind, self._context)
                variables = RequestVariables(shown, met.kind, self._context, met.param)
                value = program.composition.scope(variables, variables.decide).evaluate(mutation.expression)
                changed = self._changed(mutation, value, met, variables["object"])
                request.obj = yield from accepted(request, met.kind, changed, self._context)
            except EvaluationError as failure:
                errors.append(PolicyError(met, failure_of(mutation.expression, failure)))
            except MutationError as failure:
                errors.append(PolicyError(met, str(failure)))
            except ApiError as failure:
                errors.append(PolicyError(met, failure.message))
        return errors

    def _changed(self, mutation: CompiledMutation, value: Any, met: Invocation, obj: Object) -> Object:
        if mutation.patch_type == "JSONPatch":
            return _patched(value, obj)
        schema = self._context.schema(met.kind)
        config = {**value, "apiVersion": obj["apiVersion"], "kind": obj["kind"]}
        unknown = list(typed.undeclared(config, schema))
        if unknown:
            problem = f"{unknown[0]}: field not declared in schema"
            raise MutationError(f"error applying patch: failed to convert patch object to typed object: {problem}")
        atomic = list(_atomic(config, schema, ""))
        if atomic:
            problem = f"may not mutate atomic arrays, maps or structs: {', '.join(atomic)}"
            raise MutationError(f"error applying patch: invalid ApplyConfiguration: {problem}")
        merged: Object = typed.merge(obj, config, schema)
        return merged


def _patched(operations: list[Object], obj: Object) -> Object:
    """The object with a JSON patch applied; unchanged when a ``test`` of the patch fails.

    Raises: MutationError.
    """
    try:
        patched = json_patch.apply(obj, operations)
    except ApiError as failure:
        if any(operation.get("op") == "test" for operation in operations) and "test" in failure.message.lower():
            return obj
        raise MutationError(f"JSON Patch: {failure.message}") from failure
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata", {}), dict):
        raise MutationError("JSON Patch: the patched value is not an object")
    return patched


def _atomic(value: Any, schema: Any, path: str) -> Iterator[str]:
    """The paths of what an apply configuration would replace as a whole."""
    if isinstance(value, dict):
        if schema.map_atomic:
            yield path
        for name, item in value.items():
            below = schema.child(name)
            if below is not None:
                yield from _atomic(item, below, f"{path}.{name}")
    elif isinstance(value, list):
        if schema.list_type == "atomic":
            yield path
        for index, item in enumerate(value):
            yield from _atomic(item, schema.items, f"{path}[{index}]")


def _key(met: Invocation) -> tuple[str, str, str, str]:
    meta = (met.param or {}).get("metadata") or {}
    return met.policy.name, met.binding.name, meta.get("namespace") or "", meta.get("name") or ""


def _refusal(request: AdmissionRequest, errors: list[PolicyError]) -> ApiError:
    texts = [
        f"policy '{error.met.policy.name}' with binding '{error.met.binding.name}' denied request: {error.message}"
        for error in errors
    ]
    denial = failures.forbidden(request.call.kind, request.name, "")
    details: Object = {**denial.details, "causes": [{"message": text} for text in texts]}
    return ApiError(403, errors[0].reason or "Forbidden", texts[0], details)
