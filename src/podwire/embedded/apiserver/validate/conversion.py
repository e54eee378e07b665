"""Checks ``spec.conversion`` of a CustomResourceDefinition.

Source: ``k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`` (``validateCustomResourceConversion``); the
paths in messages are those of Kubernetes' internal type.
"""

from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.webhooks import check_client

Json = dict[str, Any]

_PATH = "spec.conversion"
_KNOWN = ("v1", "v1beta1")


def check_conversion(conversion: Json) -> Iterator[Cause]:
    """Strategy and webhook."""
    strategy, webhook = conversion.get("strategy"), conversion.get("webhook") or {}
    client, versions = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or []
    if strategy not in (None, "None", "Webhook"):
        yield causes.unsupported(f"{_PATH}.strategy", strategy, ("None", "Webhook"))
    elif strategy == "Webhook":
        if client is None:
            yield causes.required(f"{_PATH}.webhookClientConfig", "required when strategy is set to Webhook")
        else:
            yield from check_client(client, f"{_PATH}.webhookClientConfig")
        yield from _check_versions(versions)
    else:
        detail = "should not be set when strategy is not set to Webhook"
        if client is not None:
            yield causes.forbidden(f"{_PATH}.webhookClientConfig", detail)
        if versions:
            yield causes.forbidden(f"{_PATH}.conversionReviewVersions", detail)


def _check_versions(versions: list[str]) -> Iterator[Cause]:
    path = f"{_PATH}.conversionReviewVersions"
    if not versions:
        yield causes.required(path)
        return
    for index, version in enumerate(versions):
        if version in versions[:index]:
            yield causes.invalid(f"{path}[{index}]", version, "duplicate version")
        elif problem := names.label_1035(version):
            yield causes.invalid(f"{path}[{index}]", version, problem)
    if not set(versions) & set(_KNOWN):
        yield causes.invalid(path, versions, f"must include at least one of {', '.join(_KNOWN)}")
