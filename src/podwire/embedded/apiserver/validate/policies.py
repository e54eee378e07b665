"""Checks admission policies and their bindings.

Every expression is compiled, with the variables that it may use. Source:
``k8s.io/kubernetes/pkg/apis/admissionregistration/validation``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.cel import requests
from podwire.embedded.apiserver.cel.composition import Composition
from podwire.embedded.apiserver.cel.expressions import CompileError
from podwire.embedded.apiserver.cel.objects import compile_mutation
from podwire.embedded.apiserver.cel.policies import FIELDS, annotation
from podwire.embedded.apiserver.cel.values import RESERVED
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.expressions import check_conditions, check_expression
from podwire.embedded.apiserver.validate.webhooks import check_rule
from podwire.embedded.apiserver.validate.workloads import check_selector

Json = dict[str, Any]

_FAILURE_POLICIES = ("Fail", "Ignore")
_MATCH_POLICIES = ("Equivalent", "Exact")
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Audit", "Deny", "Warn")
_NOT_FOUND_ACTIONS = ("Allow", "Deny")
_REINVOCATION_POLICIES = ("IfNeeded", "Never")
_MOST_ANNOTATIONS = 20
_MOST_ANNOTATION_BYTES = 5 * 1024
_IDENTIFIER = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")


def check_validating_policy(new: Json, old: Json | None) -> Iterator[Cause]:
    """A ValidatingAdmissionPolicy."""
    del old
    spec: Json = new.get("spec") or {}
    yield from _common(spec)
    params = spec.get("paramKind") is not None
    composition = Composition()
    yield from check_variables(spec, composition)
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        detail = "validations or auditAnnotations must contain at least one item"
        yield causes.required("spec.validations", detail)
        yield causes.required("spec.auditAnnotations", detail)
        return
    full = composition.types(requests.variables(params=params))
    plain = composition.types(requests.variables(params=params, authorizer=False))
    for index, validation in enumerate(spec.get("validations") or ()):
        yield from _validation(validation, full, plain, f"spec.validations[{index}]")
    yield from _annotations(new, spec.get("auditAnnotations") or [], full)


def _common(spec: Json) -> Iterator[Cause]:
    """The checks that both kinds of policies share."""
    if spec.get("failurePolicy") not in _FAILURE_POLICIES:
        yield causes.unsupported("spec.failurePolicy", spec.get("failurePolicy"), _FAILURE_POLICIES)
    if spec.get("paramKind") is not None:
        yield from _param_kind(spec["paramKind"], "spec.paramKind")
    match = spec.get("matchConstraints")
    if match is None:
        yield causes.required("spec.matchConstraints")
    else:
        yield from _match(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            yield causes.required("spec.matchConstraints.resourceRules")
    params = spec.get("paramKind") is not None
    yield from check_conditions(spec.get("matchConditions") or [], "spec.matchConditions", params=params)


def _param_kind(param_kind: Json, path: str) -> Iterator[Cause]:
    text = str(param_kind.get("apiVersion") or "")
    group, _, version = text.rpartition("/")
    if not text:
        yield causes.required(f"{path}.apiVersion")
    elif text.count("/") > 1:
        yield causes.invalid(f"{path}.apiVersion", text, f"unexpected GroupVersion string: {text}")
    else:
        if group and (problem := names.subdomain(group)):
            yield causes.invalid(f"{path}.apiVersion", group, problem)
        if problem := names.label_1035(version):
            yield causes.invalid(f"{path}.apiVersion", version, problem)
    kind = str(param_kind.get("kind") or "")
    if not kind:
        yield causes.required(f"{path}.kind")
    elif problem := names.label_1035(kind.lower()):
        yield causes.invalid(f"{path}.kind", kind, f"may have mixed case, but should otherwise match: {problem}")


def _match(constraints: Json, path: str) -> Iterator[Cause]:
    if constraints.get("matchPolicy") not in _MATCH_POLICIES:
        yield causes.unsupported(f"{path}.matchPolicy", constraints.get("matchPolicy"), _MATCH_POLICIES)
    for field in ("namespaceSelector", "objectSelector"):
        yield from check_selector(constraints.get(field), f"{path}.{field}")
    for field in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(constraints.get(field) or ()):
            yield from _named_rule(rule, f"{path}.{field}[{index}]")


def _named_rule(rule: Json, path: str) -> Iterator[Cause]:
    known_names: set[str] = set()
    for index, name in enumerate(rule.get("resourceNames") or ()):
        if problem := names.path_segment(name):
            yield causes.invalid(f"{path}.resourceNames[{index}]", name, problem)
        if name in known_names:
            yield causes.duplicate(f"{path}.resourceNames[{index}]", name)
        known_names.add(name)
    yield from check_rule(rule, path)


def check_variables(spec: Json, composition: Composition) -> Iterator[Cause]:
    """The variables of a policy; those that compile are added to ``composition``."""
    types = requests.variables(params=spec.get("paramKind") is not None)
    for index, variable in enumerate(spec.get("variables") or ()):
        path = f"spec.variables[{index}]"
        name, source = str(variable.get("name") or ""), str(variable.get("expression") or "")
        if not name.strip():
            yield causes.required(f"{path}.name", "name is not specified")
        elif not _IDENTIFIER.fullmatch(name) or name in RESERVED:
            yield causes.invalid(f"{path}.name", name, "name is not a valid CEL identifier")
        if not source.strip():
            yield causes.required(f"{path}.expression", "expression is not specified")
            continue
        try:
            composition.add(name, source, types)
        except CompileError as failure:
            yield causes.invalid(f"{path}.expression", source, str(failure))


def _validation(validation: Json, full: Mapping[str, str], plain: Mapping[str, str], path: str) -> Iterator[Cause]:
    source, message = str(validation.get("expression") or ""), str(validation.get("message") or "")
    if source.strip():
        yield from check_expression(source, full, "bool", f"{path}.expression")
    else:
        yield causes.required(f"{path}.expression", "expression is not specified")
    evaluated = str(validation.get("messageExpression") or "")
    if evaluated.strip():
        yield from check_expression(evaluated, plain, "string", f"{path}.messageExpression")
    elif evaluated:
        yield causes.invalid(f"{path}.messageExpression", evaluated, "must be non-empty if specified")
    if message and not message.strip():
        yield causes.invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif "\n" in message.strip() or "\r" in message.strip():
        yield causes.invalid(f"{path}.message", message, "message must not contain line breaks")
    if validation.get("reason") is not None and validation["reason"] not in _REASONS:
        yield causes.unsupported(f"{path}.reason", validation["reason"], _REASONS)


def _annotations(new: Json, audit_annotations: list[Json], types: Mapping[str, str]) -> Iterator[Cause]:
    if len(audit_annotations) > _MOST_ANNOTATIONS:
        detail = f"must not have more than {_MOST_ANNOTATIONS} auditAnnotations"
        yield causes.invalid("spec.auditAnnotations", audit_annotations, detail)
    keys: set[str] = set()
    for index, item in enumerate(audit_annotations):
        path, key = f"spec.auditAnnotations[{index}]", str(item.get("key") or "")
        full = f"{new['metadata'].get('name') or ''}/{key}"
        if problem := names.qualified(full):
            yield causes.invalid(f"{path}.key", full, problem)
        yield from _annotation(item, types, f"{path}.valueExpression")
        if key in keys:
            yield causes.duplicate(f"{path}.key", key)
        keys.add(key)


def _annotation(item: Json, types: Mapping[str, str], path: str) -> Iterator[Cause]:
    source = str(item.get("valueExpression") or "")
    if not source.strip():
        yield causes.required(path, "valueExpression is not specified")
    elif len(source.strip().encode()) > _MOST_ANNOTATION_BYTES:
        yield causes.required(path, f"must not exceed {_MOST_ANNOTATION_BYTES} bytes in length")
    else:
        try:
            annotation(item, types)
        except CompileError as failure:
            yield causes.invalid(path, source, str(failure))


def check_mutating_policy(new: Json, old: Json | None) -> Iterator[Cause]:
    """A MutatingAdmissionPolicy."""
    del old
    spec: Json = new.get("spec") or {}
    yield from _common(spec)
    composition = Composition()
    yield from check_variables(spec, composition)
    if spec.get("reinvocationPolicy") not in _REINVOCATION_POLICIES:
        yield causes.unsupported("spec.reinvocationPolicy", spec.get("reinvocationPolicy"), _REINVOCATION_POLICIES)
    if not spec.get("mutations"):
        yield causes.required("spec.mutations", "mutations must contain at least one item")
    types = composition.types(requests.variables(params=spec.get("paramKind") is not None))
    for index, mutation in enumerate(spec.get("mutations") or ()):
        yield from _mutation(mutation, types, f"spec.mutations[{index}]")


def _mutation(mutation: Json, types: dict[str, str], path: str) -> Iterator[Cause]:
    patch_type = str(mutation.get("patchType") or "")
    if not patch_type:
        yield causes.required(f"{path}.patchType")
        return
    if patch_type not in FIELDS:
        yield causes.unsupported(f"{path}.patchType", patch_type, FIELDS)
        return
    for other_type, field in FIELDS.items():
        if other_type != patch_type and mutation.get(field) is not None:
            yield causes.forbidden(f"{path}.{field}", f"must not be specified when patchType is {patch_type}")
    field = FIELDS[patch_type]
    if mutation.get(field) is None:
        yield causes.required(f"{path}.{field}", f"must be specified when patchType is {patch_type}")
        return
    source = str(mutation[field].get("expression") or "")
    if not source.strip():
        yield causes.required(f"{path}.{field}.expression", "expression is not specified")
        return
    try:
        compile_mutation(source, types, patch_type)
    except CompileError as failure:
        yield causes.invalid(f"{path}.{field}.expression", source, str(failure))


def check_mutating_binding(new: Json, old: Json | None) -> Iterator[Cause]:
    """A MutatingAdmissionPolicyBinding."""
    del old
    yield from _bound(new.get("spec") or {})


def check_validating_binding(new: Json, old: Json | None) -> Iterator[Cause]:
    """A ValidatingAdmissionPolicyBinding."""
    del old
    spec: Json = new.get("spec") or {}
    yield from _bound(spec)
    yield from _actions(spec.get("validationActions") or [], "spec.validationActions")


def _bound(spec: Json) -> Iterator[Cause]:
    """The checks that both kinds of bindings share."""
    name = str(spec.get("policyName") or "")
    if not name:
        yield causes.required("spec.policyName")
    elif problem := names.subdomain(name):
        yield causes.invalid("spec.policyName", name, problem)
    if spec.get("paramRef") is not None:
        yield from _param_ref(spec["paramRef"], "spec.paramRef")
    if spec.get("matchResources") is not None:
        yield from _match(spec["matchResources"], "spec.matchResources")


def _param_ref(param_ref: Json, path: str) -> Iterator[Cause]:
    name, selector = str(param_ref.get("name") or ""), param_ref.get("selector")
    if name and (problem := names.path_segment(name)):
        yield causes.invalid(f"{path}.name", name, problem)
    if name and selector is not None:
        for field in ("name", "selector"):
            yield causes.forbidden(f"{path}.{field}", "name and selector are mutually exclusive")
    if selector is not None:
        yield from check_selector(selector, f"{path}.selector")
    elif not name:
        yield causes.required(path, "one of name or selector must be specified")
    action = param_ref.get("parameterNotFoundAction")
    if action not in _NOT_FOUND_ACTIONS:
        yield causes.unsupported(f"{path}.parameterNotFoundAction", action, _NOT_FOUND_ACTIONS)


def _actions(actions: list[str], path: str) -> Iterator[Cause]:
    for index, action in enumerate(actions):
        if action not in _ACTIONS:
            yield causes.unsupported(f"{path}[{index}]", action, _ACTIONS)
        if action in actions[:index]:
            yield causes.duplicate(f"{path}[{index}]", action)
    if "Deny" in actions and "Warn" in actions:
        detail = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            "response and headers serves no purpose)"
        )
        yield causes.invalid(path, actions, detail)
    if not actions:
        yield causes.required(path, "at least one validation action is required")
