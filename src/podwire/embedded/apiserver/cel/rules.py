"""The rules of custom resources (``x-kubernetes-validations``): compiled for a schema, evaluated for each write.

A :class:`RuleTree` follows the schema and leads only to rules. Rules with ``oldSelf`` are evaluated where the old
object has a value at the same place; lists correlate by their keys. A rule about a value that a write does not change
is not evaluated again. Sources: ``pkg/apiserver/schema/cel`` and ``pkg/apis/apiextensions/validation`` of
``apiextensions-apiserver``.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from podwire.embedded.apiserver.cel import values
from podwire.embedded.apiserver.cel.expressions import CompileError, EvaluationError, Expression
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes

Json = dict[str, Any]

RULES = "x-kubernetes-validations"
_REASONS = ("FieldValueRequired", "FieldValueForbidden", "FieldValueInvalid", "FieldValueDuplicate")
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\['((?:[^'\\]|\\.)*)'\]")
_MOST_MESSAGE_BYTES = 2048
_MOST_MESSAGE_CHARACTERS = 5120
"""Longer texts of a ``messageExpression`` are not shown."""


class SchemaRule(msgspec.Struct, frozen=True):
    """A rule, its expressions, and its problems."""

    rule: Json
    expression: Expression | None
    message: Expression | None
    transition: bool
    """Whether the rule uses ``oldSelf``."""
    field_path: str
    problems: tuple[Cause, ...]
    """With paths below the rule."""

    @property
    def default_message(self) -> str:
        """The message of a rule without ``messageExpression``."""
        return str(self.rule.get("message") or "").strip() or f"failed rule: {self.rule.get('rule', '').strip()}"


class RuleTree(msgspec.Struct, frozen=True):
    """The rules of a schema and of the schemas below."""

    schema: Json
    path: str
    """The path of the schema in the definition, below ``openAPIV3Schema``."""
    rules: tuple[SchemaRule, ...]
    properties: dict[str, "RuleTree"]
    items: "RuleTree | None"
    additional: "RuleTree | None"


# -- compilation


def compile_rules(schema: Json) -> RuleTree | None:
    """The rules of a whole object's schema; None without any. Rules that are wrong carry their problems."""
    return _tree(values.with_object_fields(schema), "", correlates=True)


def _tree(schema: Any, path: str, *, correlates: bool) -> RuleTree | None:
    if not isinstance(schema, dict):
        return None
    if schema.get("x-kubernetes-embedded-resource"):
        schema = values.with_object_fields(schema)
    below = correlates and schema.get("x-kubernetes-list-type") == "map"
    properties = {
        name: tree
        for name, sub in (schema.get("properties") or {}).items()
        if (tree := _tree(sub, f"{path}.properties[{name}]", correlates=correlates)) is not None
    }
    items = _tree(schema.get("items"), f"{path}.items", correlates=below)
    additional = _tree(schema.get("additionalProperties"), f"{path}.additionalProperties", correlates=correlates)
    label = path.rpartition("[")[2].partition("]")[0] or "object"
    rules = tuple(_compiled(rule, schema, label, path if not correlates else "") for rule in schema.get(RULES) or ())
    if not (rules or properties or items or additional):
        return None
    return RuleTree(schema, path, rules, properties, items, additional)


def _compiled(rule: Json, schema: Json, label: str, uncorrelatable: str) -> SchemaRule:
    """``uncorrelatable`` is the path of a schema whose values have no old values; empty where they have."""
    source = str(rule.get("rule") or "")
    kind = values.type_of(schema, label)
    optional = "oldSelf" if rule.get("optionalOldSelf") else ""
    problems: list[Cause] = []
    if not source.strip():
        return SchemaRule(rule, None, None, False, "", (causes.required("rule"),))
    expression, transition = None, False
    try:
        expression, transition = _expression(source, kind, optional)
    except CompileError as failure:
        problems.append(causes.invalid("rule", rule, f"compilation failed: {failure}"))
    if expression is not None and expression.result != "bool":
        problems.append(causes.invalid("rule", rule, "cel expression must evaluate to a bool"))
    if transition and uncorrelatable:
        detail = (
            f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable.lstrip('.')}"
        )
        problems.append(causes.invalid("rule", source, detail))
    if optional and expression is not None and not transition:
        problems.append(causes.invalid("optionalOldSelf", True, "may not be set if oldSelf is not used in rule"))
    message = None
    try:
        message = _message_of(rule, kind, optional if transition else "", transition=transition)
    except CompileError as failure:
        problems.append(causes.invalid("messageExpression", rule, str(failure)))
    field_path, wrong = _field_path(rule, schema)
    return SchemaRule(rule, expression, message, transition, field_path, (*problems, *wrong, *_texts(rule)))


def _expression(source: str, kind: str, optional: str) -> tuple[Expression, bool]:
    """The expression, and whether it uses ``oldSelf``."""
    try:
        return Expression(source, {"self": kind}), False
    except CompileError:
        return Expression(source, {"self": kind, "oldSelf": kind}, optional), True


def _message_of(rule: Json, kind: str, optional: str, *, transition: bool) -> Expression | None:
    source = str(rule.get("messageExpression") or "")
    if not source:
        return None
    variables = {"self": kind, "oldSelf": kind} if transition else {"self": kind}
    try:
        expression = Expression(source, variables, optional)
    except CompileError as failure:
        raise CompileError(f"messageExpression compilation failed: {failure}") from failure
    if expression.result != "string":
        raise CompileError("messageExpression must evaluate to a string")
    return expression


def _field_path(rule: Json, schema: Json) -> tuple[str, list[Cause]]:
    """The path of ``fieldPath`` as messages show paths, and the problems of ``fieldPath``."""
    text = str(rule.get("fieldPath") or "")
    field_path, remaining = "", text
    node: Any = schema
    while remaining:
        step_match = _STEP.match(remaining)
        name = (step_match[1] or step_match[2].replace("\\'", "'")) if step_match else ""
        properties, additional = node.get("properties") or {}, node.get("additionalProperties")
        if step_match is None or not (name in properties or isinstance(additional, dict)):
            return "", [
                causes.invalid("fieldPath", text, "fieldPath must be a valid path: does not refer to a valid field")
            ]
        field_path += f".{name}" if name in properties else f"[{name}]"
        node = properties.get(name, additional)
        remaining = remaining[step_match.end() :]
    return field_path, []


def _texts(rule: Json) -> Iterator[Cause]:
    """The problems of the message and the reason."""
    message = str(rule.get("message") or "")
    if message and not message.strip():
        yield causes.invalid("message", message, "message must be non-empty if specified")
    if "\n" in message:
        yield causes.invalid("message", message, "message must not contain line breaks")
    elif len(message.encode()) > _MOST_MESSAGE_BYTES:
        yield causes.too_long("message", _MOST_MESSAGE_BYTES)
    elif "\n" in str(rule.get("rule") or "").strip() and not message:
        yield causes.required("message", "message must be specified if rule contains line breaks")
    reason = rule.get("reason")
    if reason is not None and reason not in _REASONS:
        yield causes.unsupported("reason", reason, _REASONS)


def problems(schema: Json, path: str) -> list[Cause]:
    """The problems of the rules of a definition's schema at ``path``."""
    misplaced = list(_misplaced(schema, path, ""))
    tree = compile_rules(schema)
    return misplaced + (list(_problems(tree, path)) if tree is not None else [])


def _problems(tree: RuleTree, root: str) -> Iterator[Cause]:
    for index, rule in enumerate(tree.rules):
        for cause in rule.problems:
            yield msgspec.structs.replace(cause, field=f"{root}{tree.path}.{RULES}[{index}].{cause.field}")
    for below in (*tree.properties.values(), tree.items, tree.additional):
        if below is not None:
            yield from _problems(below, root)


def _misplaced(schema: Any, path: str, logical: str) -> Iterator[Cause]:
    """Rules below ``allOf``, ``anyOf``, ``oneOf`` and ``not``, where Kubernetes does not evaluate them either."""
    if not isinstance(schema, dict):
        return
    if logical and schema.get(RULES):
        yield causes.forbidden(f"{path}.{RULES}", "must be empty to be structural")
    for keyword in ("allOf", "anyOf", "oneOf"):
        for index, sub in enumerate(schema.get(keyword) or ()):
            yield from _misplaced(sub, f"{path}.{keyword}[{index}]", keyword)
    yield from _misplaced(schema.get("not"), f"{path}.not", "not")
    for name, sub in (schema.get("properties") or {}).items():
        yield from _misplaced(sub, f"{path}.properties[{name}]", logical)
    for keyword in ("items", "additionalProperties"):
        yield from _misplaced(schema.get(keyword), f"{path}.{keyword}", logical)


# -- evaluation


def check(tree: RuleTree, new: Json, old: Json | None) -> list[Cause]:
    """Every rule that a valid object breaks."""
    return list(_check(tree, new, old, ""))


def _check(tree: RuleTree, new: Any, old: Any, path: str) -> Iterator[Cause]:
    if new is None:
        return
    if tree.rules:
        yield from _evaluated(tree, new, old, path)
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for name, item in new.items():
            below, field_path = tree.properties.get(name), f"{path}.{name}" if path else name
            if below is None and tree.additional is not None and name not in (tree.schema.get("properties") or {}):
                below, field_path = tree.additional, f"{path}[{name}]"
            if below is not None:
                yield from _check(below, item, before.get(name), field_path)
    elif isinstance(new, list) and tree.items is not None:
        for index, item in enumerate(new):
            yield from _check(tree.items, item, values.old_item(item, old, tree.schema), f"{path}[{index}]")


def _evaluated(tree: RuleTree, new: Any, old: Any, path: str) -> Iterator[Cause]:
    try:
        variables = {"self": values.value_of(new, tree.schema)}
        before = {"oldSelf": values.value_of(old, tree.schema)} if old is not None else {}
    except ValueError as failure:
        yield _broken(path, new, str(failure), "")
        return
    for rule in tree.rules:
        skipped = old is None and not rule.rule.get("optionalOldSelf") if rule.transition else new == old
        if skipped:
            continue
        if rule.expression is None or rule.problems:
            texts = "; ".join(cause.message for cause in rule.problems)
            yield _broken(path, new, f"the rule cannot be evaluated: {texts}", "")
            continue
        bound_variables = {**variables, **before} if rule.transition else variables
        try:
            holds = rule.expression.evaluate(bound_variables)
        except EvaluationError as failure:
            yield _broken(path, new, f"{failure} evaluating rule: {rule.default_message}", "")
            continue
        if holds is not True:
            yield _refusal(rule, bound_variables, new, path)


def _refusal(rule: SchemaRule, variables: Json, value: Any, path: str) -> Cause:
    text, shown = rule.default_message, value
    if rule.message is not None:
        try:
            message = rule.message.evaluate(variables)
        except EvaluationError:
            message = ""
        if (
            isinstance(message, str)
            and message.strip()
            and "\n" not in message
            and len(message) <= _MOST_MESSAGE_CHARACTERS
        ):
            text, shown = message.strip(), {}
    field_path = f"{path}{rule.field_path}" if path else rule.field_path.removeprefix(".")
    return _broken(field_path, shown, text, rule.rule.get("reason") or "")


def _broken(path: str, value: Any, text: str, reason: str) -> Cause:
    """The cause of a rule that does not hold; objects and lists are not shown."""
    path = path or "<nil>"
    if reason == "FieldValueRequired":
        return causes.required(path, text)
    if reason == "FieldValueForbidden":
        return causes.forbidden(path, text)
    if reason == "FieldValueDuplicate":
        return causes.duplicate(path, value)
    if isinstance(value, dict | list):
        return Cause(path, "FieldValueInvalid", f"Invalid value: {text}")
    return causes.invalid(path, value, text)
