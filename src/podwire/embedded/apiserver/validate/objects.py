"""Checks an object before it is stored: first its metadata, then the rules of its kind, found in a table.

Messages, reasons and field paths are those of Kubernetes. An update is checked as a whole and against the old
object; status writes check the metadata alone.
"""

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.validate import (
    apiservices,
    autoscaling,
    causes,
    devices,
    flowcontrol,
    metadata,
    names,
    network,
    pods,
    policies,
    servicecidrs,
    storage,
    webhooks,
    workloads,
)

Json = dict[str, Any]
Check = Callable[[Json, Json | None], Iterator[Cause]]

_RBAC = "rbac.authorization.k8s.io"
_DATA_LIMIT = 1024 * 1024
_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _keys(new: Json, fields: tuple[str, ...]) -> Iterator[Cause]:
    """Keys and total size of the data of a ConfigMap or Secret."""
    size = 0
    for field in fields:
        for key, value in (new.get(field) or {}).items():
            size += len(value) if field == "data" and new.get("kind") != "Secret" else len(b64decode(value))
            if problem := names.data_key(key):
                yield causes.invalid(f"{field}[{key}]", key, problem)
    if size > _DATA_LIMIT:
        yield causes.too_long("data" if "type" in new else "", _DATA_LIMIT)


def _frozen(new: Json, old: Json | None, fields: tuple[str, ...]) -> Iterator[Cause]:
    """The fields that may not change once ``immutable`` is set."""
    if old is None or not old.get("immutable"):
        return
    detail = "field is immutable when `immutable` is set"
    if not new.get("immutable"):
        yield causes.forbidden("immutable", detail)
    for field in fields:
        if (new.get(field) or {}) != (old.get(field) or {}):
            yield causes.forbidden(field, detail)


def _config_map(new: Json, old: Json | None) -> Iterator[Cause]:
    yield from _keys(new, ("data", "binaryData"))
    for key in (new.get("data") or {}).keys() & (new.get("binaryData") or {}).keys():
        yield causes.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    yield from _frozen(new, old, ("data", "binaryData"))


def _secret(new: Json, old: Json | None) -> Iterator[Cause]:
    yield from _keys(new, ("data",))
    for key in _SECRET_KEYS.get(new.get("type") or "", ()):
        if key not in (new.get("data") or {}):
            yield causes.required(f"data[{key}]")
    if old is not None and new.get("type") != old.get("type"):
        yield causes.invalid("type", new.get("type"), "field is immutable")
    yield from _frozen(new, old, ("data",))


def _binding(new: Json, old: Json | None) -> Iterator[Cause]:
    role = new.get("roleRef") or {}
    namespaced = new.get("kind") == "RoleBinding"
    if (role.get("apiGroup") or "") != _RBAC:
        yield causes.unsupported("roleRef.apiGroup", role.get("apiGroup") or "", (_RBAC,))
    kinds = ("ClusterRole", "Role") if namespaced else ("ClusterRole",)
    if role.get("kind") not in kinds:
        yield causes.unsupported("roleRef.kind", role.get("kind") or "", kinds)
    if not role.get("name"):
        yield causes.required("roleRef.name")
    elif problem := names.path_segment(role["name"]):
        yield causes.invalid("roleRef.name", role["name"], problem)
    for index, subject in enumerate(new.get("subjects") or ()):
        yield from _subject(subject, f"subjects[{index}]", namespaced=namespaced)
    if old is not None and role != old.get("roleRef"):
        yield causes.invalid("roleRef", role, "cannot change roleRef")


def _subject(subject: Json, path: str, *, namespaced: bool) -> Iterator[Cause]:
    """A subject; an account without a namespace is one of the binding's own namespace."""
    kind, name, group = (subject.get(field) or "" for field in ("kind", "name", "apiGroup"))
    if not name:
        yield causes.required(f"{path}.name")
    if kind == "ServiceAccount":
        if name and (problem := names.subdomain(name)):
            yield causes.invalid(f"{path}.name", name, problem)
        if group:
            yield causes.unsupported(f"{path}.apiGroup", group, ("",))
        if not namespaced and not subject.get("namespace"):
            yield causes.required(f"{path}.namespace")
    elif kind in ("Group", "User"):
        if not name:
            yield causes.invalid(f"{path}.name", name, f"{kind.lower()} name cannot be empty")
        if group != _RBAC:
            yield causes.unsupported(f"{path}.apiGroup", group, (_RBAC,))
    else:
        yield causes.unsupported(f"{path}.kind", kind, ("ServiceAccount", "User", "Group"))


def _role(new: Json, _: Json | None) -> Iterator[Cause]:
    for index, rule in enumerate(new.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield causes.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if new.get("kind") == "Role":
                detail = "namespaced rules cannot apply to non-resource URLs"
                yield causes.invalid(f"{path}.nonResourceURLs", rule["nonResourceURLs"], detail)
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                yield causes.invalid(f"{path}.nonResourceURLs", rule["nonResourceURLs"], detail)
            continue
        for field, noun in (("apiGroups", "api group"), ("resources", "resource")):
            if not rule.get(field):
                yield causes.required(f"{path}.{field}", f"resource rules must supply at least one {noun}")


def _cluster_role(new: Json, old: Json | None) -> Iterator[Cause]:
    yield from _role(new, old)
    aggregation = new.get("aggregationRule")
    if aggregation is not None:
        path = "aggregationRule.clusterRoleSelectors"
        if not aggregation.get("clusterRoleSelectors"):
            detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
            yield causes.required(path, detail)
        for index, selector in enumerate(aggregation.get("clusterRoleSelectors") or ()):
            yield from workloads.check_selector(selector, f"{path}[{index}]")


def _node(new: Json, old: Json | None) -> Iterator[Cause]:
    spec: Json = new.get("spec") or {}
    for index, text in enumerate(spec.get("podCIDRs") or ()):
        if problem := names.cidr(text):
            yield causes.invalid(f"spec.podCIDRs[{index}]", text, problem)
    for index, taint in enumerate(spec.get("taints") or ()):
        path = f"spec.taints[{index}]"
        if problem := names.qualified(taint.get("key") or ""):
            yield causes.invalid(f"{path}.key", taint.get("key") or "", problem)
        effects = ("NoExecute", "NoSchedule", "PreferNoSchedule")
        yield from pods.one_of(taint.get("effect") or "", effects, f"{path}.effect")
    was = ((old or {}).get("spec") or {}).get("podCIDRs")
    if was and spec.get("podCIDRs") != was:
        detail = 'node updates may not change podCIDR except from "" to valid'
        yield causes.forbidden("spec.podCIDRs", detail)


def _template(new: Json, _: Json | None) -> Iterator[Cause]:
    yield from pods.check_template(new.get("template"), "template")


def _controller(new: Json, _: Json | None) -> Iterator[Cause]:
    spec: Json = new.get("spec") or {}
    if not spec.get("selector"):
        yield causes.required("spec.selector")
    yield from pods.at_least(spec.get("replicas"), 0, "spec.replicas")
    yield from pods.check_template(spec.get("template"), "spec.template")


def _priority_class(new: Json, old: Json | None) -> Iterator[Cause]:
    policies = ("Never", "PreemptLowerPriority")
    yield from pods.one_of(new.get("preemptionPolicy"), policies, "preemptionPolicy")
    if old is not None and new.get("value") != old.get("value"):
        yield causes.forbidden("value", "may not be changed in an update.")


CHECKS: Mapping[tuple[str, str], Check] = {
    ("", "Pod"): pods.check_pod,
    ("", "PodTemplate"): _template,
    ("", "ReplicationController"): _controller,
    ("", "Service"): network.check_service,
    ("", "Endpoints"): network.check_endpoints,
    ("", "Node"): _node,
    ("", "ConfigMap"): _config_map,
    ("", "Secret"): _secret,
    ("", "PersistentVolumeClaim"): storage.check_claim,
    ("", "PersistentVolume"): storage.check_volume,
    ("storage.k8s.io", "StorageClass"): storage.check_class,
    ("storage.k8s.io", "VolumeAttributesClass"): storage.check_attributes_class,
    ("apps", "Deployment"): workloads.check_deployment,
    ("apps", "ReplicaSet"): workloads.check_replica_set,
    ("apps", "DaemonSet"): workloads.check_daemon_set,
    ("apps", "StatefulSet"): workloads.check_stateful_set,
    ("batch", "Job"): workloads.check_job,
    ("batch", "CronJob"): workloads.check_cron_job,
    ("policy", "PodDisruptionBudget"): workloads.check_disruption_budget,
    ("autoscaling", "HorizontalPodAutoscaler"): autoscaling.check_autoscaler,
    ("discovery.k8s.io", "EndpointSlice"): network.check_endpoint_slice,
    ("networking.k8s.io", "NetworkPolicy"): network.check_network_policy,
    ("networking.k8s.io", "Ingress"): network.check_ingress,
    ("networking.k8s.io", "IngressClass"): network.check_ingress_class,
    ("networking.k8s.io", "IPAddress"): network.check_ip_address,
    ("networking.k8s.io", "ServiceCIDR"): servicecidrs.check_service_cidr,
    ("coordination.k8s.io", "Lease"): network.check_lease,
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): flowcontrol.check_flow_schema,
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): flowcontrol.check_priority_level,
    ("resource.k8s.io", "DeviceClass"): devices.check_device_class,
    ("resource.k8s.io", "ResourceClaim"): devices.check_claim,
    ("resource.k8s.io", "ResourceClaimTemplate"): devices.check_claim_template,
    ("resource.k8s.io", "ResourceSlice"): devices.check_slice,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): webhooks.check_configuration,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): webhooks.check_configuration,
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): policies.check_mutating_policy,
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): policies.check_mutating_binding,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): policies.check_validating_policy,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): policies.check_validating_binding,
    ("apiregistration.k8s.io", "APIService"): apiservices.check_api_service,
    (_RBAC, "RoleBinding"): _binding,
    (_RBAC, "ClusterRoleBinding"): _binding,
    (_RBAC, "Role"): _role,
    (_RBAC, "ClusterRole"): _cluster_role,
}
"""By group and kind; a kind that is not here has its metadata checked only."""

_RELAXED = ("status", "binding", "finalize", "approval")


def check(kind: ResourceKind, new: Json, old: Json | None, subresource: str = "") -> list[Cause]:
    """Every field that is wrong, in the order of the object; empty for an object that may be stored.

    The object has passed the check of its types and has its defaults.
    """
    problems = list(metadata.check(kind, new, old))
    run = CHECKS.get((kind.group, kind.kind)) if not kind.custom else None
    if run is None:
        return problems
    if subresource == "ephemeralcontainers":
        return problems + list(pods.check_ephemeral(new, old or {}))
    if subresource == "resize":
        return problems + list(pods.check_resize(new, old or {}))
    if subresource in _RELAXED:
        return problems
    return problems + list(run(new, old))
