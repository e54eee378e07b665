"""Refuses writes that exceed a ResourceQuota of their namespace.

Usage is compared in the same turn of the event loop that stores the object, so parallel writes cannot exceed a quota
together. Source: ``k8s.io/apiserver/pkg/admission/plugin/resourcequota``.
"""

from collections.abc import Mapping
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.podresources import Amount, Resources, add, parse_resources
from podwire.embedded.apiserver.admission.quota import scopes
from podwire.embedded.apiserver.admission.quota.ledger import QUOTAS, QuotaStatuses, UsageLedger, mask
from podwire.embedded.apiserver.admission.quota.usage import CLAIMS, PODS, SERVICES, missing, usage


class ResourceQuotaAdmission:
    """Compares writes with the quotas of their namespace."""

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store
        self._ledger = UsageLedger(context.store)
        QuotaStatuses(context.store, self._ledger).start()

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Forbidden for a write that exceeds a quota, or for a pod without the requests that a quota counts."""
        if not _uses_more(request):
            return
        table, obj = request.table, request.obj
        specs = {
            entry.name: entry.object().get("spec") or {}
            for entry in self._store.entries(QUOTAS, request.call.namespace)
        }
        specs = {name: spec for name, spec in specs.items() if scopes.is_in_scope(spec, table, obj)}
        if not specs:
            return
        for name, spec in specs.items():
            lacking = missing(obj, spec.get("hard") or ()) if table == PODS else ""
            if lacking:
                raise failures.forbidden(
                    request.call.kind, request.name, f"failed quota: {name}: must specify {lacking}"
                )
        increase = _increase(request)
        for name, spec in specs.items():
            self._check(request, name, spec, increase)

    def _check(self, request: AdmissionRequest, name: str, spec: Mapping[str, Any], demanded: Resources) -> None:
        hard = parse_resources(spec.get("hard"))
        requested = mask(demanded, hard)
        if not requested:
            return
        used = self._ledger.used(request.call.namespace, spec)
        total = add(used, requested)
        exceeded = sorted(resource for resource in requested if total[resource].milli > hard[resource].milli)
        if exceeded:
            texts = [_listed(amounts, exceeded) for amounts in (requested, used, hard)]
            problem = f"exceeded quota: {name}, requested: {texts[0]}, used: {texts[1]}, limited: {texts[2]}"
            raise failures.forbidden(request.call.kind, request.name, problem)


def _listed(amounts: Resources, names: list[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


def _uses_more(request: AdmissionRequest) -> bool:
    """Whether the write can use more than before: a creation, a changed Service or claim, a resized pod."""
    if not request.call.namespace:
        return False
    if request.operation == "UPDATE":
        return (request.table, request.call.subresource) in ((SERVICES, ""), (CLAIMS, ""), (PODS, "resize"))
    return request.creates


def _increase(request: AdmissionRequest) -> Resources:
    """The increase of the object's usage."""
    after = usage(request.table, request.obj)
    before = usage(request.table, request.old) if request.old else {}
    zero = Amount(0)
    more = {name: Amount(value.milli - before.get(name, zero).milli, value.family) for name, value in after.items()}
    return {name: value for name, value in more.items() if value.milli > 0}
