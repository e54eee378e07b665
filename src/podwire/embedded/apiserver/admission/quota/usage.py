"""The usage of one object, by the names of resources in a ResourceQuota.

Sources: ``k8s.io/kubernetes/pkg/quota/v1/evaluator/core`` and ``k8s.io/apiserver/pkg/quota/v1/generic``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from podwire.embedded.apiserver.admission.podresources import Amount, Resources, parse_amount, pod_resources
from podwire.model.storage import CLASS_BETA

Object = Mapping[str, Any]

PODS, SERVICES, CLAIMS = "/pods", "/services", "/persistentvolumeclaims"

_ONE_OBJECT = Amount(1000)
_COUNTED_BY_NAME = frozenset({
    "/configmaps", "/persistentvolumeclaims", "/replicationcontrollers", "/resourcequotas", "/secrets", "/services",
})  # fmt: skip
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_REQUIRED = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})
_STORAGE_CLASS = ".storageclass.storage.k8s.io/"


def table_of(resource: str) -> str:
    """The table whose objects use a resource."""
    if resource.startswith("count/"):
        plural, _, group = resource.removeprefix("count/").partition(".")
        return f"{group}/{plural}"
    if resource in ("services.nodeports", "services.loadbalancers"):
        return SERVICES
    if resource == "requests.storage" or _STORAGE_CLASS in resource:
        return CLAIMS
    return f"/{resource}" if f"/{resource}" in _COUNTED_BY_NAME else PODS


def usage(table: str, obj: Object) -> Resources:
    """The usage of an object of a table.

    Raises: ValueError for a value that is no quantity.
    """
    group, _, plural = table.partition("/")
    used = {f"count/{plural}.{group}" if group else f"count/{plural}": _ONE_OBJECT}
    if table in _COUNTED_BY_NAME:
        used[plural] = _ONE_OBJECT
    if table == PODS:
        used |= _pod_usage(obj)
    elif table == SERVICES:
        used |= _service_usage(obj.get("spec") or {})
    elif table == CLAIMS:
        used |= _claim_usage(obj)
    return used


def _pod_usage(pod: Object) -> Resources:
    """A pod that has ended uses nothing."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return {}
    requests, limits = pod_resources(pod["spec"], "requests"), pod_resources(pod["spec"], "limits")
    return {"pods": _ONE_OBJECT, **_named(requests, limits)}


def _named(requests: Resources, limits: Resources) -> Resources:
    """Requests and limits under the names that quotas have for them."""
    used: Resources = {}
    for name, value in requests.items():
        if name in _COMPUTE or name.startswith("hugepages-"):
            used[name] = used[f"requests.{name}"] = value
        elif "/" in name:
            used[f"requests.{name}"] = value
    return used | {f"limits.{name}": limits[name] for name in _COMPUTE if name in limits}


def _service_usage(spec: Object) -> Resources:
    ports = spec.get("ports") or ()
    kind = spec.get("type")
    used = {"services.nodeports": Amount(0), "services.loadbalancers": Amount(0)}
    if kind == "LoadBalancer":
        used["services.loadbalancers"] = _ONE_OBJECT
        if spec.get("allocateLoadBalancerNodePorts") is False:
            ports = [port for port in ports if port.get("nodePort")]
    if kind in ("NodePort", "LoadBalancer"):
        used["services.nodeports"] = Amount(len(ports) * 1000)
    return used


def _claim_usage(claim: Object) -> Resources:
    spec = claim.get("spec") or {}
    annotations = (claim.get("metadata") or {}).get("annotations") or {}
    name = annotations.get(CLASS_BETA) or spec.get("storageClassName")
    used: Resources = {}
    if name:
        used[f"{name}{_STORAGE_CLASS}persistentvolumeclaims"] = _ONE_OBJECT
    requested = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if requested is not None:
        used["requests.storage"] = parse_amount(requested)
        if name:
            used[f"{name}{_STORAGE_CLASS}requests.storage"] = used["requests.storage"]
    return used


def missing(pod: Object, hard: Iterable[str]) -> str:
    """What containers must specify because a quota counts it, ``cpu for: a,b; memory for: a``; empty when nothing."""
    required = _REQUIRED & set(hard)
    spec = pod["spec"]
    if not required or spec.get("resources"):
        return ""
    lacking: dict[str, set[str]] = {}
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        single = {"containers": [container]}
        present = _named(pod_resources(single, "requests"), pod_resources(single, "limits"))
        for name in required - present.keys():
            lacking.setdefault(name, set()).add(container["name"])
    return "; ".join(f"{name} for: {','.join(sorted(lacking[name]))}" for name in sorted(lacking))
