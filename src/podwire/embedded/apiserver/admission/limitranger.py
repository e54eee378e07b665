"""Holds pods and claims to the LimitRanges of their namespace.

A new pod gets the default requests and limits, then both kinds are refused outside of minimum, maximum and ratio.
"""

from collections.abc import Callable, Mapping
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission import limitranges
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.defaults.pods import qos_class

_LIMIT_RANGES = "/limitranges"
_CHECKS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]] = {
    "/pods": limitranges.check_pod,
    "/persistentvolumeclaims": limitranges.check_claim,
}


class LimitRanger:
    """Reads LimitRanges."""

    tables = frozenset(_CHECKS)

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def mutate(self, request: AdmissionRequest) -> None:
        """Sets the default requests and limits of a new pod, and its quality of service by them."""
        if request.table != "/pods" or not request.creates:
            return
        for entry in self._store.entries(_LIMIT_RANGES, request.call.namespace):
            limitranges.set_defaults(request.obj, entry.object())
            request.obj["status"]["qosClass"] = qos_class(request.obj["spec"])

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Forbidden for a pod or claim outside of the limits."""
        if not _is_checked(request):
            return
        check = _CHECKS[request.table]
        for entry in self._store.entries(_LIMIT_RANGES, request.call.namespace):
            problems = check(request.obj.get("spec") or {}, entry.object())
            if problems:
                problem = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
                raise failures.forbidden(request.call.kind, request.name, problem)


def _is_checked(request: AdmissionRequest) -> bool:
    """Whether the write can change resources: creation, resizing a pod, any change of a claim."""
    if request.operation == "UPDATE":
        checked_subresource = "resize" if request.table == "/pods" else ""
        return request.call.subresource == checked_subresource
    return request.creates
