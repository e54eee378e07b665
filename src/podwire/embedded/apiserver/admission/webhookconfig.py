"""Webhooks, parsed from their configurations.

Source: ``k8s.io/apiserver/pkg/admission/plugin/webhook/generic``.
"""

from typing import Any

import msgspec

from podwire.embedded.apiserver.admission.matching import ConfigurationModel, ResourceRule
from podwire.embedded.apiserver.store import Store
from podwire.model.selector import LabelSelector

Object = dict[str, Any]


class ServiceReference(ConfigurationModel, frozen=True):
    """The Service of a webhook."""

    namespace: str
    name: str
    path: str = ""
    port: int = 443


class ClientConfig(ConfigurationModel, frozen=True):
    """The address of a webhook: a URL or a Service."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str = ""
    """Certificates (PEM) in base64; the machine's own authorities when empty."""


class Webhook(ConfigurationModel, frozen=True):
    """One webhook of a configuration."""

    name: str
    client_config: ClientConfig
    rules: tuple[ResourceRule, ...] = ()
    failure_policy: str = "Fail"
    match_policy: str = "Equivalent"
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    side_effects: str = "None"
    timeout_seconds: int = 10
    reinvocation_policy: str = "Never"
    match_conditions: tuple[Object, ...] = ()

    @property
    def has_side_effects(self) -> bool:
        """Whether a dry run must not call the webhook."""
        return self.side_effects not in ("None", "NoneOnDryRun")


class Configured(msgspec.Struct, frozen=True):
    """A webhook with its unique name."""

    uid: str
    webhook: Webhook


def read_webhooks(store: Store, table: str) -> tuple[Configured, ...]:
    """The webhooks of all configurations in a table, in the order of the configurations' names."""
    webhooks = []
    for entry in store.entries(table):
        for index, hook in enumerate(entry.object().get("webhooks") or ()):
            webhooks.append(Configured(f"{entry.name}/{index}", msgspec.convert(hook, Webhook)))
    return tuple(webhooks)
