"""Prepares objects by kind before they are stored: status, generation, and fields that only the server sets.

The rules are those of the ``strategy.go`` of each kind in Kubernetes' ``pkg/registry``. Common rules are tables: the
kinds with generations and the fields that count, the kinds that PUT may create, the kinds whose updates need a
resourceVersion, the kinds that are deleted with a grace period.
"""

import random
from typing import Any

from podwire.embedded.apiserver.aggregation.status import set_local
from podwire.embedded.apiserver.defaults.pods import qos_class
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.serviceranges import RANGES, prepare_range

Object = dict[str, Any]

GENERATIONS = frozenset({
    "/pods", "/replicationcontrollers", "apps/daemonsets", "apps/deployments", "apps/replicasets",
    "apps/statefulsets", "autoscaling/horizontalpodautoscalers", "batch/cronjobs", "batch/jobs",
    "networking.k8s.io/ingresses", "networking.k8s.io/ingressclasses", "networking.k8s.io/networkpolicies",
    "networking.k8s.io/servicecidrs", "policy/poddisruptionbudgets", "discovery.k8s.io/endpointslices",
    "scheduling.k8s.io/priorityclasses", "apiextensions.k8s.io/customresourcedefinitions",
    "admissionregistration.k8s.io/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/validatingwebhookconfigurations",
    "admissionregistration.k8s.io/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
    "admissionregistration.k8s.io/validatingadmissionpolicies",
    "admissionregistration.k8s.io/validatingadmissionpolicybindings",
    "flowcontrol.apiserver.k8s.io/flowschemas", "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
    "resource.k8s.io/deviceclasses", "resource.k8s.io/resourceslices",
})  # fmt: skip
"""Tables whose objects carry ``metadata.generation``; kinds of CustomResourceDefinitions do, too."""

CREATED_BY_UPDATE = frozenset({
    "/services", "/endpoints", "/events", "/limitranges", "coordination.k8s.io/leases",
    "rbac.authorization.k8s.io/roles", "rbac.authorization.k8s.io/rolebindings",
    "rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/clusterrolebindings",
    "node.k8s.io/runtimeclasses",
})  # fmt: skip
"""Tables in which PUT creates an object that does not exist."""

VERSIONED_UPDATES = frozenset({
    "coordination.k8s.io/leases", "apiextensions.k8s.io/customresourcedefinitions",
    "networking.k8s.io/ipaddresses", "apiregistration.k8s.io/apiservices",
    "admissionregistration.k8s.io/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
    "admissionregistration.k8s.io/validatingadmissionpolicies",
    "admissionregistration.k8s.io/validatingadmissionpolicybindings",
})  # fmt: skip
"""Tables in which PUT must name the resourceVersion; kinds of CustomResourceDefinitions, too."""

RETURNED_WHEN_DELETED = frozenset({
    "/pods", "/services", "/serviceaccounts", "/podtemplates", "/persistentvolumes",
    "/persistentvolumeclaims", "/resourcequotas", "/namespaces",
})  # fmt: skip
"""Tables whose DELETE answers with the object instead of a Status."""

STORED_ONLY = {
    "flowcontrol.apiserver.k8s.io/flowschemas": "it is stored: this API server does not queue requests",
    "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations": "it is stored: this API server does not queue requests",
    "resource.k8s.io/resourceclaims": "it is stored: the scheduler allocates no devices",
}
"""Tables whose new objects get a warning: users expect an effect that these objects do not have here."""

_KEEPS_STATUS_ON_CREATE = frozenset({"/nodes", "/endpoints", "/events"})
_STATUS_ONLY = frozenset({
    "apiextensions.k8s.io/customresourcedefinitions", "apiregistration.k8s.io/apiservices",
    "storage.k8s.io/volumeattachments", "resource.k8s.io/resourceclaims",
    "flowcontrol.apiserver.k8s.io/flowschemas", "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
    "admissionregistration.k8s.io/validatingadmissionpolicies",
})  # fmt: skip
"""Tables in which a write of the status changes no metadata; kinds of CustomResourceDefinitions are like these."""

_METADATA = ("labels", "annotations", "ownerReferences", "finalizers")
_KEPT_BY_STATUS = {"apps/deployments": ("labels",), "/pods": ("ownerReferences",)}
"""The fields of the metadata that a write of the status does not change, in the other tables."""

_INITIAL_STATUS: dict[str, Object] = {
    "/namespaces": {"phase": "Active"},
    "/services": {"loadBalancer": {}},
    "/persistentvolumes": {"phase": "Available"},
    "/persistentvolumeclaims": {"phase": "Pending"},
    "apps/replicasets": {"replicas": 0},
    "/replicationcontrollers": {"replicas": 0},
    "apps/statefulsets": {"replicas": 0, "availableReplicas": 0},
    "apps/daemonsets": {
        "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
    },
    "networking.k8s.io/ingresses": {"loadBalancer": {}},
    "policy/poddisruptionbudgets": {
        "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
    },
}  # fmt: skip

_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"


def generate_name(prefix: str) -> str:
    """``prefix``, cut to 58 characters, and five random characters that form no words."""
    return prefix[:58] + "".join(random.choices(_NAME_CHARACTERS, k=5))


_UNCOUNTED = ("finalize", "binding")
"""Subresources whose writes do not change the desired state."""


def counts_generations(kind: ResourceKind) -> bool:
    """Whether objects carry a generation."""
    return kind.custom or kind.table in GENERATIONS


def prepare_create(kind: ResourceKind, obj: Object) -> None:
    """Sets the fields of a new object that only the server decides: status and generation."""
    if kind.has_status and kind.table not in _KEEPS_STATUS_ON_CREATE:
        obj.pop("status", None)
        if kind.table == "/pods":
            obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj.get("spec") or {})}
        elif not kind.custom:
            obj["status"] = dict(_INITIAL_STATUS.get(kind.table, {}))
    if kind.table == "apiregistration.k8s.io/apiservices" and not (obj.get("spec") or {}).get("service"):
        set_local(obj, obj["metadata"]["creationTimestamp"])
    if kind.table == RANGES:
        prepare_range(obj, obj["metadata"]["creationTimestamp"])
    if counts_generations(kind):
        obj["metadata"]["generation"] = 1
    if kind.table == "/namespaces":
        spec = obj.setdefault("spec", {})
        if "kubernetes" not in (spec.get("finalizers") or ()):
            spec["finalizers"] = [*(spec.get("finalizers") or ()), "kubernetes"]
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def prepare_update(kind: ResourceKind, new: Object, old: Object) -> None:
    """Restores the fields that an update without subresource may not change."""
    if kind.has_status:
        _keep(new, old, "status")
    if kind.table == "/namespaces":
        _keep(new, old, "spec")
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = old["metadata"]["name"]


def count_generation(kind: ResourceKind, new: Object, old: Object, subresource: str) -> None:
    """Counts a change of the content; both objects have their defaults, so omitting a default is not a change."""
    if subresource in _UNCOUNTED or not counts_generations(kind):
        return
    if _content(kind, new) != _content(kind, old):
        new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1


def prepare_status(kind: ResourceKind, new: Object, old: Object) -> None:
    """Keeps everything but the status and the metadata; of some kinds the metadata too."""
    for field in tuple(new.keys() | old.keys()):
        if field not in ("status", "metadata"):
            _keep(new, old, field)
    only = kind.custom or kind.table in _STATUS_ONLY
    for field in _METADATA if only else _KEPT_BY_STATUS.get(kind.table, ()):
        _keep(new["metadata"], old["metadata"], field)
    if kind.table == "/pods":
        status = new.setdefault("status", {})
        status.setdefault("qosClass", (old.get("status") or {}).get("qosClass", "BestEffort"))


def prepare_change(kind: ResourceKind, new: Object, old: Object, subresource: str) -> None:
    """The same as :func:`prepare_update`, for an update through a subresource."""
    if subresource == "ephemeralcontainers":
        _keep_all_but_ephemeral(new, old)
    if subresource == "resize":
        _keep_all_but_resources(new, old)
    if subresource not in (*_UNCOUNTED, "approval"):  # An approval writes conditions of the status.
        prepare_update(kind, new, old)


def _keep_all_but_ephemeral(new: Object, old: Object) -> None:
    ephemeral = (new.get("spec") or {}).get("ephemeralContainers")
    for field in _METADATA:
        _keep(new["metadata"], old["metadata"], field)
    new["spec"] = {**old["spec"], "ephemeralContainers": ephemeral or []}


def _keep_all_but_resources(new: Object, old: Object) -> None:
    """Takes from ``new`` only the resources of containers that exist, and the policies of their resize."""
    for field in ("labels", "annotations", "ownerReferences", "finalizers"):
        _keep(new["metadata"], old["metadata"], field)
    spec = dict(old["spec"])
    for kind in ("containers", "initContainers"):
        containers = {c.get("name"): c for c in (new.get("spec") or {}).get(kind) or ()}
        if kind in spec:
            spec[kind] = [_resized(container, containers.get(container.get("name"))) for container in spec[kind]]
    new["spec"] = spec


def _resized(container: Object, resources: Object | None) -> Object:
    if resources is None:
        return container
    fields: Object = {field: resources[field] for field in ("resources", "resizePolicy") if field in resources}
    return {**container, **fields}


def _keep(new: Object, old: Object, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _content(kind: ResourceKind, obj: Object) -> Object:
    """The part whose changes a generation counts: the spec, or the whole object without a spec."""
    if not kind.custom and "spec" in obj:
        return {"spec": obj["spec"]}
    return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion", "kind")}
