"""Webhooks as their configurations describe them, and which requests they are called for.

Sources: ``k8s.io/apiserver/pkg/admission/plugin/webhook`` (``generic``, ``predicates``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver.admission.chain import AdmissionRequest
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.store import Store
from podwire.model.selector import LabelSelector

Object = dict[str, Any]

_EXEMPT = "admissionregistration.k8s.io"
_NAMESPACES = "/namespaces"


class WebhookModel(msgspec.Struct, frozen=True, rename="camel"):
    """Reads the fields by their names in the API."""


class WebhookRule(WebhookModel, frozen=True):
    """Operations on resources; ``*`` stands for all."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"

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


class ServiceReference(WebhookModel, frozen=True):
    """The Service of a webhook."""

    namespace: str
    name: str
    path: str = ""
    port: int = 443


class ClientConfig(WebhookModel, frozen=True):
    """Where a webhook is."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str = ""
    """Certificates (PEM) in base64; the machine's own authorities when empty."""


class Webhook(WebhookModel, frozen=True):
    """One webhook of a configuration."""

    name: str
    client_config: ClientConfig
    rules: tuple[WebhookRule, ...] = ()
    failure_policy: str = "Fail"
    match_policy: str = "Equivalent"
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    side_effects: str = "None"
    timeout_seconds: int = 10
    reinvocation_policy: str = "Never"

    @property
    def has_side_effects(self) -> bool:
        """Whether a dry run must not call the webhook."""
        return self.side_effects not in ("None", "NoneOnDryRun")


class Configured(msgspec.Struct, frozen=True):
    """A webhook, and a name for it that no other webhook has."""

    uid: str
    webhook: Webhook


def read_webhooks(store: Store, table: str) -> tuple[Configured, ...]:
    """The webhooks of all configurations in a table, in the order of the configurations' names."""
    found = []
    for entry in store.entries(table):
        for index, hook in enumerate(entry.object().get("webhooks") or ()):
            found.append(Configured(f"{entry.name}/{index}", msgspec.convert(hook, Webhook)))
    return tuple(found)


def is_exempt(kind: ResourceKind) -> bool:
    """Whether no webhook is called for objects of a kind, since it could then never be repaired."""
    return kind.group == _EXEMPT


def kind_for(webhook: Webhook, request: AdmissionRequest, kinds: Mapping[Key, ResourceKind]) -> ResourceKind | None:
    """The kind in whose version a rule of the webhook wants the request; None when no rule covers it."""
    call = request.call
    namespaced = bool(call.namespace) and call.kind.namespaced
    for kind in _equivalents(webhook, call.kind, kinds):
        for rule in webhook.rules:
            if rule.covers(kind, call.subresource, request.operation, namespaced=namespaced):
                return kind
    return None


def _equivalents(webhook: Webhook, kind: ResourceKind, kinds: Mapping[Key, ResourceKind]) -> Iterable[ResourceKind]:
    yield kind
    if webhook.match_policy != "Exact" and kind.shared:
        for other in kinds.values():
            if other.table == kind.table and other != kind:
                yield other


def selects(webhook: Webhook, request: AdmissionRequest, store: Store) -> bool:
    """Whether the selectors of the webhook choose the request."""
    return _selects_object(webhook.object_selector, request) and _selects_namespace(webhook, request, store)


def _selects_object(selector: LabelSelector, request: AdmissionRequest) -> bool:
    if not selector.match_labels and not selector.match_expressions:
        return True
    return any(
        selector.matches(obj["metadata"].get("labels") or {})
        for obj in (request.obj, request.old)
        if isinstance(obj.get("metadata"), dict)
    )


def _selects_namespace(webhook: Webhook, request: AdmissionRequest, store: Store) -> bool:
    selector, call = webhook.namespace_selector, request.call
    if not selector.match_labels and not selector.match_expressions:
        return True
    if call.kind.table == _NAMESPACES:
        obj = request.old if request.operation == "DELETE" or call.subresource else request.obj
        return selector.matches((obj.get("metadata") or {}).get("labels") or {})
    if not call.namespace:
        return True
    entry = store.get(_NAMESPACES, "", call.namespace)
    return selector.matches(entry.labels if entry is not None else {})


def _has(listed: tuple[str, ...], wanted: str) -> bool:
    return "*" in listed or wanted in listed


def _names(listed: str, plural: str, subresource: str) -> bool:
    resource, _, sub = listed.partition("/")
    return resource in ("*", plural) and sub in ("*", subresource)
