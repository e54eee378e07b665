"""Fills in the defaults of an object: one function a kind, looked up in a table.

A second run changes nothing, so every write runs it, patches of stored objects too.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping

from podwire.embedded.apiserver.defaults import devices, flowcontrol, network, pods, policies, webhooks, workloads
from podwire.embedded.apiserver.defaults.pods import Json, fill, items_of, section
from podwire.embedded.apiserver.kinds import ResourceKind

_RBAC = "rbac.authorization.k8s.io"


def _namespace(obj: Json) -> None:
    meta = section(obj, "metadata")
    if meta.get("name"):
        section(meta, "labels")["kubernetes.io/metadata.name"] = meta["name"]
    spec = section(obj, "spec")
    if spec.get("finalizers") is None and not meta.get("deletionTimestamp"):
        spec["finalizers"] = ["kubernetes"]
    fill(section(obj, "status"), {"phase": "Active"})


def _secret(obj: Json) -> None:
    fill(obj, {"type": "Opaque"})
    text = obj.pop("stringData", None)
    if isinstance(text, dict):
        data = section(obj, "data")
        for key, value in text.items():
            data[key] = b64encode(str(value).encode()).decode()


def _claim(obj: Json) -> None:
    fill(section(obj, "spec"), {"volumeMode": "Filesystem"})
    fill(section(obj, "status"), {"phase": "Pending"})


def _volume(obj: Json) -> None:
    fill(section(obj, "spec"), {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"})
    fill(section(obj, "status"), {"phase": "Pending"})


def _storage_class(obj: Json) -> None:
    fill(obj, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})


def _binding(obj: Json) -> None:
    if isinstance(obj.get("roleRef"), dict):
        fill(obj["roleRef"], {"apiGroup": _RBAC})
    for subject in items_of(obj, "subjects"):
        if subject.get("kind") in ("User", "Group"):
            fill(subject, {"apiGroup": _RBAC})


def _role(obj: Json) -> None:
    """Kubernetes always shows the rules, as null when there are none."""
    obj.setdefault("rules", None)


def _priority_class(obj: Json) -> None:
    fill(obj, {"preemptionPolicy": "PreemptLowerPriority"})


def _limit_range(obj: Json) -> None:
    """What a container gets without resources of its own: ``max`` limits, ``default`` and ``min`` request."""
    for item in items_of(section(obj, "spec"), "limits"):
        if item.get("type") != "Container":
            continue
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        for field, amounts in (("default", limits), ("defaultRequest", requests)):
            if amounts:
                item[field] = amounts


def _definition(obj: Json) -> None:
    spec = section(obj, "spec")
    names = section(spec, "names")
    kind = names.get("kind") or ""
    fill(names, {"singular": kind.lower(), "listKind": f"{kind}List"})
    conversion = section(spec, "conversion")
    fill(conversion, {"strategy": "None"})
    client = (conversion.get("webhook") or {}).get("clientConfig") or {}
    if client.get("service"):
        fill(client["service"], {"port": 443})


def _api_service(obj: Json) -> None:
    service = section(obj, "spec").get("service")
    if service:
        fill(service, {"port": 443})


DEFAULTS: Mapping[tuple[str, str], Callable[[Json], None]] = {
    ("", "Pod"): pods.fill_pod,
    ("", "PodTemplate"): workloads.fill_pod_template,
    ("", "ReplicationController"): workloads.fill_replication_controller,
    ("", "Service"): network.fill_service,
    ("", "Endpoints"): network.fill_endpoints,
    ("", "Namespace"): _namespace,
    ("", "LimitRange"): _limit_range,
    ("", "Secret"): _secret,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "PersistentVolume"): _volume,
    ("apps", "Deployment"): workloads.fill_deployment,
    ("apps", "ReplicaSet"): workloads.fill_replica_set,
    ("apps", "DaemonSet"): workloads.fill_daemon_set,
    ("apps", "StatefulSet"): workloads.fill_stateful_set,
    ("batch", "Job"): workloads.fill_job,
    ("batch", "CronJob"): workloads.fill_cron_job,
    ("autoscaling", "HorizontalPodAutoscaler"): workloads.fill_autoscaler,
    ("discovery.k8s.io", "EndpointSlice"): network.fill_endpoint_slice,
    ("networking.k8s.io", "NetworkPolicy"): network.fill_network_policy,
    ("networking.k8s.io", "Ingress"): network.fill_ingress,
    ("networking.k8s.io", "IngressClass"): network.fill_ingress_class,
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): flowcontrol.fill_flow_schema,
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): flowcontrol.fill_priority_level,
    ("resource.k8s.io", "ResourceClaim"): devices.fill_claim,
    ("resource.k8s.io", "ResourceClaimTemplate"): devices.fill_claim_template,
    ("storage.k8s.io", "StorageClass"): _storage_class,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): webhooks.mutating,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): webhooks.validating,
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): policies.mutating_policy,
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): policies.binding,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): policies.policy,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): policies.binding,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
    ("apiregistration.k8s.io", "APIService"): _api_service,
    (_RBAC, "Role"): _role,
    (_RBAC, "ClusterRole"): _role,
    (_RBAC, "RoleBinding"): _binding,
    (_RBAC, "ClusterRoleBinding"): _binding,
}
"""By group and kind; a kind that is not here has no defaults."""


def apply(kind: ResourceKind, obj: Json) -> Json:
    """The object with its defaults filled in; ``obj`` itself is changed and returned.

    The object must have passed the check of its types. A Job gets its generated selector once it has a uid.
    """
    run = DEFAULTS.get((kind.group, kind.kind)) if not kind.custom else None
    if run is not None:
        run(obj)
    return obj
