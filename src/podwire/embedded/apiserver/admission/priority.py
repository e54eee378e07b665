"""Sets the priority of a new pod: that of its class, of the default class when the pod names no class, or 0.

The rules are those of Kubernetes' plugin Priority (``plugin/pkg/admission/priority``).
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest

Object = dict[str, Any]

_PRIORITIES = "scheduling.k8s.io/priorityclasses"
_NO_CLASS: Object = {"value": 0}


class PriorityAdmission:
    """Looks up priority classes, and lets one of them be the default."""

    tables = frozenset({"/pods", _PRIORITIES})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def mutate(self, request: AdmissionRequest) -> None:
        """Sets ``priorityClassName`` from the default class, ``priority`` and ``preemptionPolicy`` of a new pod.

        Raises: Forbidden when the class does not exist, or the pod has another priority or policy than its class.
        """
        if request.table != "/pods" or not request.creates:
            return
        spec = request.obj["spec"]
        priority_class = self._class_of(request)
        if class_name := (priority_class.get("metadata") or {}).get("name"):
            spec["priorityClassName"] = class_name
        _set(request, "priority", priority_class.get("value", 0), "integer value of priority")
        policy = priority_class.get("preemptionPolicy") or "PreemptLowerPriority"
        _set(request, "preemptionPolicy", policy, "string value of PreemptionPolicy")

    def validate(self, request: AdmissionRequest) -> None:
        """Refuses a second default class. Raises: Forbidden."""
        if request.table != _PRIORITIES or request.operation == "DELETE" or not request.obj.get("globalDefault"):
            return
        default = self._default_class()
        if default is not None and (request.creates or default["metadata"]["name"] != request.name):
            problem = (
                f"PriorityClass {default['metadata']['name']} is already marked as default. Only one default can exist"
            )
            raise failures.forbidden(request.call.kind, request.name, problem)

    def _class_of(self, request: AdmissionRequest) -> Object:
        name = request.obj["spec"].get("priorityClassName")
        if not name:
            return self._default_class() or _NO_CLASS
        entry = self._store.get(_PRIORITIES, "", str(name))
        if entry is None:
            problem = f"no PriorityClass with name {name} was found"
            raise failures.forbidden(request.call.kind, request.name, problem)
        return entry.object()

    def _default_class(self) -> Object | None:
        """The default class; of several, which an older API server may have let in, the one with the lowest value."""
        classes = (entry.object() for entry in self._store.entries(_PRIORITIES))
        return min((c for c in classes if c.get("globalDefault")), key=lambda c: c.get("value", 0), default=None)


def _set(request: AdmissionRequest, field: str, computed: Any, title: str) -> None:
    spec = request.obj["spec"]
    configured = spec.get(field)
    if configured is not None and configured != computed:
        problem = (
            f"the {title} ({configured}) must not be provided in pod spec; priority admission controller computed "
            f"{computed} from the given PriorityClass name"
        )
        raise failures.forbidden(request.call.kind, request.name, problem)
    spec[field] = computed
