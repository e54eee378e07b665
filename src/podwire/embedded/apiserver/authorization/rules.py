"""The action of a request, and the rules of roles that allow actions.

Sources: ``k8s.io/kubernetes/pkg/apis/rbac/v1/evaluation_helpers.go`` (matching),
``k8s.io/component-helpers/auth/rbac/validation`` (coverage of one rule by another), ``pkg/registry/rbac/validation``
(how missing rights are shown).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

ANY = "*"


class RequestAttributes(msgspec.Struct, frozen=True):
    """One action: on a resource, or, with ``path`` set, on a URL outside the resources."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    selected: Mapping[str, str] = {}
    """The fields that a field selector compares with one value."""

    @property
    def target(self) -> str:
        """The resource as rules name it: ``pods`` or ``pods/log``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class PolicyRule(msgspec.Struct, frozen=True, rename="camel"):
    """One rule of a role; the field names are those of ``PolicyRule``."""

    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")

    def allows(self, asked: RequestAttributes) -> bool:
        """Whether the rule allows an action."""
        verbs = self.verbs
        if asked.verb not in verbs and ANY not in verbs:
            return False
        if asked.path:
            return any(url_matches(url, asked.path) for url in self.non_resource_urls)
        groups = self.api_groups
        if asked.group not in groups and ANY not in groups:
            return False
        if not _resource_matches(self.resources, asked.target, asked.subresource):
            return False
        return not self.resource_names or asked.name in self.resource_names

    def covers(self, single: "PolicyRule") -> bool:
        """Whether the rule grants all that ``single``, a rule of one action, grants."""
        if not _has_all(self.verbs, single.verbs):
            return False
        if single.non_resource_urls:
            return any(url_matches(url, single.non_resource_urls[0]) for url in self.non_resource_urls)
        if not _has_all(self.api_groups, single.api_groups):
            return False
        resource = single.resources[0]
        if not _resource_matches(self.resources, resource, resource.partition("/")[2]):
            return False
        names = single.resource_names
        return not self.resource_names or (bool(names) and set(names) <= set(self.resource_names))

    def __str__(self) -> str:
        """The rule as Kubernetes shows a right that is missing."""
        fields = (
            ("APIGroups", self.api_groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.non_resource_urls),
            ("ResourceNames", self.resource_names),
            ("Verbs", self.verbs),
        )
        return "{" + ", ".join(f"{name}:{quoted_list(values)}" for name, values in fields if values) + "}"


FULL_AUTHORITY = (
    PolicyRule(verbs=(ANY,), api_groups=(ANY,), resources=(ANY,)),
    PolicyRule(verbs=(ANY,), non_resource_urls=(ANY,)),
)
"""Rules that allow every action."""


def quoted_list(values: Iterable[str]) -> str:
    """Texts as Go's ``%q`` prints a list of them."""
    return "[" + " ".join(json.dumps(value, ensure_ascii=False) for value in values) + "]"


def url_matches(pattern: str, path: str) -> bool:
    """Whether a path is the pattern, or begins with a pattern that ends in ``*``."""
    if pattern in (ANY, path):
        return True
    return pattern.endswith(ANY) and path.startswith(pattern.rstrip(ANY))


def _resource_matches(patterns: tuple[str, ...], target: str, subresource: str) -> bool:
    if target in patterns or ANY in patterns:
        return True
    return bool(subresource) and f"*/{subresource}" in patterns


def _has_all(held: tuple[str, ...], requested: tuple[str, ...]) -> bool:
    return ANY in held or all(value in held for value in requested)


def parse_rules(raw: Any) -> tuple[PolicyRule, ...]:
    """The rules of a stored role; ``null`` is no rule."""
    return msgspec.convert(raw or (), tuple[PolicyRule, ...])


def single_actions(rule: PolicyRule) -> Iterable[PolicyRule]:
    """The rule as rules of one verb on one resource (and name) or URL each."""
    for group in rule.api_groups:
        for resource in rule.resources:
            for verb in rule.verbs:
                for name in rule.resource_names or ("",):
                    yield PolicyRule((verb,), (group,), (resource,), (name,) if name else ())
    for url in rule.non_resource_urls:
        for verb in rule.verbs:
            yield PolicyRule((verb,), non_resource_urls=(url,))


def missing_rules(held: Iterable[PolicyRule], requested: Iterable[PolicyRule]) -> list[PolicyRule]:
    """The rules of ``requested`` that ``held`` does not cover; rules that differ in their verbs only are merged."""
    held = tuple(held)
    missing: dict[PolicyRule, list[str]] = {}
    for rule in requested:
        for single in single_actions(rule):
            if not any(own.covers(single) for own in held):
                key = msgspec.structs.replace(single, verbs=())
                verbs = missing.setdefault(key, [])
                if single.verbs[0] not in verbs:
                    verbs.append(single.verbs[0])
    return [msgspec.structs.replace(key, verbs=tuple(verbs)) for key, verbs in missing.items()]
