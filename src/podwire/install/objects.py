"""The objects of the chart as ``podwire install`` applies and removes them: parsed, checked, ordered. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from podwire.cluster.names import PREFIX
from podwire.errors import ConfigError
from podwire.kube.resources import Json, Resource

KINDS: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): ("customresourcedefinitions", False),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): ("clusterroles", False),
    ("rbac.authorization.k8s.io/v1", "Role"): ("roles", True),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ("clusterrolebindings", False),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ("rolebindings", True),
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "Service"): ("services", True),
    ("networking.k8s.io/v1", "NetworkPolicy"): ("networkpolicies", True),
    ("policy/v1", "PodDisruptionBudget"): ("poddisruptionbudgets", True),
    ("monitoring.coreos.com/v1", "PodMonitor"): ("podmonitors", True),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ("servicemonitors", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
}
"""The kinds of the chart's objects in the order of an install: plural, and whether they have a namespace."""
WORKLOADS = ("Deployment", "DaemonSet")
MANAGER = "podwire-install"
"""The field manager of the objects that ``podwire install`` applied."""
_PROGRAMS = "podwire"
"""The field managers of all of podwire's programs begin with it."""
_HELM = "helm"


def resource_of(obj: Mapping[str, Any]) -> Resource[Json]:
    """The resource of an object that :func:`parse` returned."""
    group, _, version = obj["apiVersion"].rpartition("/")
    plural, namespaced = KINDS[obj["apiVersion"], obj["kind"]]
    return Resource(group, version, plural, obj["kind"], namespaced, dict)


def title(obj: Mapping[str, Any]) -> str:
    """``DaemonSet kube-system/podwire-agent``."""
    meta = obj["metadata"]
    return (
        f"{obj['kind']} {meta['namespace']}/{meta['name']}" if "namespace" in meta else f"{obj['kind']} {meta['name']}"
    )


def resources() -> tuple[Resource[Json], ...]:
    """The resources of the chart's objects, those of workloads first and definitions of kinds last."""
    return tuple(resource_of({"apiVersion": version, "kind": kind}) for version, kind in reversed(tuple(KINDS)))


def is_installed(obj: Mapping[str, Any]) -> bool:
    """Whether ``podwire install`` applied an object, and Helm did not."""
    managers = _managers(obj)
    return MANAGER in managers and _HELM not in managers


def is_written_at_work(obj: Mapping[str, Any]) -> bool:
    """Whether podwire's programs, and nobody else, wrote an object, and it has a name or a label of podwire.

    In a local cluster the same programs write objects that every cluster has.
    """
    managers, meta = _managers(obj), obj["metadata"]
    is_own = meta["name"].startswith(_PROGRAMS) or any(key.startswith(PREFIX) for key in meta.get("labels") or {})
    return is_own and bool(managers) and MANAGER not in managers and all(x.startswith(_PROGRAMS) for x in managers)


def _managers(obj: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(entry.get("manager", "") for entry in obj["metadata"].get("managedFields", ()))


def parse(documents: Iterable[Any], source: str) -> tuple[Json, ...]:
    """The objects of a manifest, in the order in which they are applied.

    Raises: ConfigError naming the document.
    """
    objects = []
    for number, document in enumerate(documents):
        if document is None:
            continue
        path = f"document {number + 1}"
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise ConfigError(source, path, "expected an object of the API with apiVersion, kind and metadata")
        key = document.get("apiVersion"), document.get("kind")
        if key not in KINDS:
            expected = ", ".join(sorted(kind for _, kind in KINDS))
            raise ConfigError(source, path, f"{key[1]} of {key[0]}: expected an object of the chart ({expected})")
        if not document["metadata"].get("name"):
            raise ConfigError(source, f"{path}.metadata.name", "expected a name")
        objects.append(document)
    if not objects:
        raise ConfigError(source, "", "expected objects of the chart")
    order = list(KINDS)
    return tuple(sorted(objects, key=lambda obj: order.index((obj["apiVersion"], obj["kind"]))))


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    """What an apply did or would do: ``create``, ``change`` or ``leave``."""
    if before is None:
        return "create"
    return "leave" if _content(before) == _content(after) else "change"


def _content(obj: Mapping[str, Any]) -> dict[str, Any]:
    """An object without what the API server keeps account of."""
    content = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    meta = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")}
    return {**content, "metadata": meta}


def unready(obj: Mapping[str, Any]) -> str:
    """Why a workload is not ready; empty when it is."""
    status, spec = obj.get("status", {}), obj["spec"]
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 1):
        return "not seen by its controller yet"
    if obj["kind"] == "DaemonSet":
        replicas = status.get("desiredNumberScheduled", 0)
        updated, ready = status.get("updatedNumberScheduled", 0), status.get("numberReady", 0)
    else:
        replicas = spec.get("replicas", 1)
        updated, ready = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if updated < replicas:
        return f"{updated} of {replicas} pods are new"
    return f"{ready} of {replicas} pods are ready" if ready < replicas else ""
