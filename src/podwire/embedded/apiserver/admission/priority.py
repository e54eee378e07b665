"""Sets the priority of a new pod: that of its class, of the default class when the pod names no class, or 0.

The rules are those of Kubernetes' plugin Priority.
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest

Object = dict[str, Any]

_PRIORITIES = "scheduling.k8s.io/priorityclasses"


class PriorityAdmission:
    """Looks up priority classes."""

    tables = frozenset({"/pods"})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def mutate(self, request: AdmissionRequest) -> None:
        """Sets ``priority`` and ``preemptionPolicy``.

        Raises: Forbidden when the class does not exist.
        """
        if not request.creates:
            return
        spec = request.obj["spec"]
        name = spec.get("priorityClassName")
        if name:
            entry = self._store.get(_PRIORITIES, "", str(name))
            if entry is None:
                problem = f"no PriorityClass with name {name} was found"
                raise failures.forbidden(request.call.kind, request.name, problem)
            priority_class: Object = entry.object()
        else:
            classes = (entry.object() for entry in self._store.entries(_PRIORITIES))
            priority_class = next((c for c in classes if c.get("globalDefault")), {"value": 0})
        spec["priority"] = priority_class.get("value", 0)
        spec["preemptionPolicy"] = priority_class.get("preemptionPolicy") or "PreemptLowerPriority"
