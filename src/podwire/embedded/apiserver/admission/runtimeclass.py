"""Applies the RuntimeClass of a new pod: its overhead, its node selector and its tolerations.

The rules are those of Kubernetes' plugin RuntimeClass. The handler is ignored: all pods of a local cluster run the
same way.
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest

Object = dict[str, Any]

_CLASSES = "node.k8s.io/runtimeclasses"


class RuntimeClassAdmission:
    """Looks up runtime classes."""

    tables = frozenset({"/pods"})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def mutate(self, request: AdmissionRequest) -> None:
        """Sets ``overhead``, and adds to ``nodeSelector`` and ``tolerations``.

        Raises: Forbidden when the class does not exist, or when the pod says something else than its class.
        """
        if not request.creates:
            return
        spec = request.obj["spec"]
        name, overhead = spec.get("runtimeClassName"), spec.get("overhead")
        entry = self._store.get(_CLASSES, "", str(name)) if name else None
        if name and entry is None:
            raise _refused(request, f'RuntimeClass "{name}" not found')
        runtime_class: Object = entry.object() if entry is not None else {}
        fixed = (runtime_class.get("overhead") or {}).get("podFixed")
        if overhead and overhead != fixed:
            reason = "Pod's Overhead doesn't match RuntimeClass's defined Overhead"
            if not fixed:
                reason = "Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise _refused(request, reason)
        if fixed:
            spec["overhead"] = dict(fixed)
        _schedule(request, runtime_class.get("scheduling") or {})


def _schedule(request: AdmissionRequest, scheduling: Object) -> None:
    spec = request.obj["spec"]
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        if spec.setdefault("nodeSelector", {}).setdefault(key, value) != value:
            reason = f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = "
            raise _refused(request, reason + str(spec["nodeSelector"][key]))
    own = spec.get("tolerations") or []
    added = [toleration for toleration in scheduling.get("tolerations") or () if toleration not in own]
    if added:
        spec["tolerations"] = [*own, *added]


def _refused(request: AdmissionRequest, reason: str) -> Exception:
    return failures.forbidden(request.call.kind, request.name, f"pod rejected: {reason}")
