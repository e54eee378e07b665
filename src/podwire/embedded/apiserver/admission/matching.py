"""Which requests a webhook or a policy is for: rules with operations and resources, and selectors.

Sources: ``k8s.io/apiserver/pkg/admission/plugin`` (``webhook/predicates``, ``policy/matching``).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from podwire.embedded.apiserver.admission.chain import AdmissionRequest
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.store import Store
from podwire.model.selector import LabelSelector

Object = dict[str, Any]

_EXEMPT = "admissionregistration.k8s.io"
_NAMESPACES = "/namespaces"


class ConfigurationModel(msgspec.Struct, frozen=True, rename="camel"):
    """Reads the fields by their names in the API."""


class ResourceRule(ConfigurationModel, frozen=True):
    """Operations on resources; ``*`` stands for all."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"
    resource_names: tuple[str, ...] = ()
    """The names of objects; any when empty."""

    def covers(self, kind: ResourceKind, subresource: str, operation: str, *, namespaced: bool) -> bool:
        """Whether the rule has an operation on a resource of this kind."""
        if self.scope == ("Cluster" if namespaced else "Namespaced"):
            return False
        return (
            _has(self.operations, operation)
            and _has(self.api_groups, kind.group)
            and _has(self.api_versions, kind.version)
            and any(_names(resource, kind.plural, subresource) for resource in self.resources)
        )


class Selectors(Protocol):
    """Selectors of objects by their own labels and by the labels of their namespaces."""

    @property
    def namespace_selector(self) -> LabelSelector:
        """Of the labels of namespaces."""

    @property
    def object_selector(self) -> LabelSelector:
        """Of the labels of objects."""


def is_exempt(kind: ResourceKind) -> bool:
    """Whether objects of a kind pass without webhooks and policies, since a wrong webhook or policy could otherwise
    refuse its own repair."""
    return kind.group == _EXEMPT


def covered_kind(
    rules: Sequence[ResourceRule], match_policy: str, request: AdmissionRequest, kinds: Mapping[Key, ResourceKind]
) -> ResourceKind | None:
    """The kind, in the version that a rule names, when a rule covers the request; None when no rule does."""
    call = request.call
    namespaced = bool(call.namespace) and call.kind.namespaced
    for kind in equivalents(match_policy, call.kind, kinds):
        for rule in rules:
            if rule.covers(kind, call.subresource, request.operation, namespaced=namespaced) and (
                not rule.resource_names or request.name in rule.resource_names
            ):
                return kind
    return None


def equivalents(match_policy: str, kind: ResourceKind, kinds: Mapping[Key, ResourceKind]) -> Iterable[ResourceKind]:
    """The kind itself; unless the match policy is ``Exact``, also its other versions."""
    yield kind
    if match_policy != "Exact" and kind.shared:
        for other in kinds.values():
            if other.table == kind.table and other != kind:
                yield other


def selects(selectors: Selectors, request: AdmissionRequest, store: Store) -> bool:
    """Whether the selectors choose the request."""
    return _selects_object(selectors.object_selector, request) and _selects_namespace(
        selectors.namespace_selector, request, store
    )


def _selects_object(selector: LabelSelector, request: AdmissionRequest) -> bool:
    if not selector.match_labels and not selector.match_expressions:
        return True
    return any(
        selector.matches(obj["metadata"].get("labels") or {})
        for obj in (request.obj, request.old)
        if isinstance(obj.get("metadata"), dict)
    )


def _selects_namespace(selector: LabelSelector, request: AdmissionRequest, store: Store) -> bool:
    call = request.call
    if not selector.match_labels and not selector.match_expressions:
        return True
    if call.kind.table == _NAMESPACES:
        obj = request.old if request.operation == "DELETE" or call.subresource else request.obj
        return selector.matches((obj.get("metadata") or {}).get("labels") or {})
    if not call.namespace:
        return True
    entry = store.get(_NAMESPACES, "", call.namespace)
    return selector.matches(entry.labels if entry is not None else {})


def _has(listed: tuple[str, ...], name: str) -> bool:
    return "*" in listed or name in listed


def _names(listed: str, plural: str, subresource: str) -> bool:
    resource, _, sub = listed.partition("/")
    return resource in ("*", plural) and sub in ("*", subresource)
