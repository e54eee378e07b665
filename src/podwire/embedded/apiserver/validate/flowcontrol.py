"""Rules of ``flowcontrol.apiserver.k8s.io``: FlowSchema and PriorityLevelConfiguration."""

from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes

Json = dict[str, Any]

_PRECEDENCE_LIMIT = 10_000
_METHODS = ("ByUser", "ByNamespace")
_TYPES = ("Exempt", "Limited")
_RESPONSES = ("Queue", "Reject")
_SUBJECTS = {"User": "user", "Group": "group", "ServiceAccount": "serviceAccount"}


def check_flow_schema(new: Json, _: Json | None) -> Iterator[Cause]:
    """A FlowSchema."""
    spec: Json = new.get("spec") or {}
    precedence = spec.get("matchingPrecedence") or 0
    if not 1 <= precedence <= _PRECEDENCE_LIMIT:
        detail = f"must be a value between 1 and {_PRECEDENCE_LIMIT}"
        yield causes.invalid("spec.matchingPrecedence", precedence, detail)
    method = (spec.get("distinguisherMethod") or {}).get("type")
    if spec.get("distinguisherMethod") is not None and method not in _METHODS:
        yield causes.unsupported("spec.distinguisherMethod", method, _METHODS)
    if not (spec.get("priorityLevelConfiguration") or {}).get("name"):
        yield causes.required("spec.priorityLevelConfiguration.name", "must reference a priority level")
    for index, rule in enumerate(spec.get("rules") or ()):
        yield from _rule(rule, f"spec.rules[{index}]")


def _rule(rule: Json, path: str) -> Iterator[Cause]:
    if not rule.get("subjects"):
        yield causes.required(f"{path}.subjects", "subjects must contain at least one value")
    for index, subject in enumerate(rule.get("subjects") or ()):
        field = _SUBJECTS.get(subject.get("kind", ""))
        if field is None:
            yield causes.unsupported(f"{path}.subjects[{index}].kind", subject.get("kind"), _SUBJECTS)
        elif not (subject.get(field) or {}).get("name"):
            yield causes.required(f"{path}.subjects[{index}].{field}.name")
    if not rule.get("resourceRules") and not rule.get("nonResourceRules"):
        yield causes.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty")


def check_priority_level(new: Json, _: Json | None) -> Iterator[Cause]:
    """A PriorityLevelConfiguration."""
    spec: Json = new.get("spec") or {}
    kind, limited = spec.get("type"), spec.get("limited")
    if kind not in _TYPES:
        yield causes.unsupported("spec.type", kind, _TYPES)
    elif kind == "Exempt" and limited is not None:
        yield causes.forbidden("spec.limited", "must be nil if the type is not Limited")
    elif kind == "Limited" and spec.get("exempt") is not None:
        yield causes.forbidden("spec.exempt", "must be nil if the type is Limited")
    elif kind == "Limited" and limited is None:
        yield causes.required("spec.limited", "must not be empty when type is Limited")
    elif limited is not None:
        yield from _limited(limited)


def _limited(limited: Json) -> Iterator[Cause]:
    if (shares := limited.get("nominalConcurrencyShares") or 0) < 0:
        yield causes.invalid("spec.limited.nominalConcurrencyShares", shares, "must be a non-negative integer")
    response: Json = limited.get("limitResponse") or {}
    path = "spec.limited.limitResponse"
    if response.get("type") not in _RESPONSES:
        yield causes.unsupported(f"{path}.type", response.get("type"), _RESPONSES)
    elif response["type"] == "Reject" and response.get("queuing") is not None:
        yield causes.forbidden(f"{path}.queuing", "must be nil if limited.limitResponse.type is not Limited")
    elif response["type"] == "Queue" and response.get("queuing") is None:
        detail = "must not be empty if limited.limitResponse.type is Limited"
        yield causes.required(f"{path}.queuing", detail)
