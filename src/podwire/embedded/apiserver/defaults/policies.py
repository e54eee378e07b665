"""Defaults of admission policies and their bindings."""

from typing import Any

from podwire.embedded.apiserver.defaults.pods import Json, fill, items_of, section


def policy(obj: Json) -> None:
    """Fills in a policy."""
    spec = section(obj, "spec")
    fill(spec, {"failurePolicy": "Fail"})
    _match(spec.get("matchConstraints"))


def mutating_policy(obj: Json) -> None:
    """Fills in a policy that changes objects."""
    policy(obj)
    fill(obj["spec"], {"reinvocationPolicy": "Never"})


def binding(obj: Json) -> None:
    """Fills in a binding."""
    spec = section(obj, "spec")
    _match(spec.get("matchResources"))
    if isinstance(spec.get("paramRef"), dict):
        fill(spec["paramRef"], {"parameterNotFoundAction": "Deny"})


def _match(rules: Any) -> None:
    if not isinstance(rules, dict):
        return
    fill(rules, {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}})
    for field in ("resourceRules", "excludeResourceRules"):
        for rule in items_of(rules, field):
            fill(rule, {"scope": "*"})
