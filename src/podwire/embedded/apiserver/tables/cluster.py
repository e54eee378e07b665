"""Rows of all other kinds: nodes, namespaces, events, configuration, access, storage, extensions."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.tables.cells import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Column,
    Json,
    Printer,
    age,
    at,
    condition,
    count,
    flag,
    human_duration,
    is_true,
    name,
    plain,
    since,
    wide,
)

Field = Callable[[Json], Any]

_ROLE = "node-role.kubernetes.io/"
_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _with_age(*fields: Field) -> Callable[[Json, datetime], list[Any]]:
    """Cells: the name, the given fields, the age."""
    return lambda obj, now: [name(obj), *(field(obj) for field in fields), age(obj, now)]


def _text(path: str, default: Any = "") -> Field:
    return lambda obj: at(obj, path, default)


def _size(*paths: str) -> Field:
    return lambda obj: sum(len(at(obj, path, ())) for path in paths)


def _flag(path: str) -> Field:
    return lambda obj: flag(at(obj, path))


def _created(obj: Json, _: datetime) -> list[Any]:
    return [name(obj), at(obj, "metadata.creationTimestamp", UNKNOWN)]


def _node_status(obj: Json) -> str:
    ready = condition(obj, "Ready").get("status")
    text = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return text + ",SchedulingDisabled" * bool(at(obj, "spec.unschedulable"))


def _roles(obj: Json) -> str:
    roles = set()
    for key, value in at(obj, "metadata.labels", {}).items():
        if key.startswith(_ROLE) and len(key) > len(_ROLE):
            roles.add(key.removeprefix(_ROLE))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    return ",".join(sorted(roles)) or NONE


def _node_address(obj: Json, kind: str) -> str:
    addresses = at(obj, "status.addresses", [])
    return next((item.get("address", NONE) for item in addresses if item.get("type") == kind), NONE)


def _node(obj: Json, now: datetime) -> list[Any]:
    info = at(obj, "status.nodeInfo", {})
    return [
        name(obj),
        _node_status(obj),
        _roles(obj),
        age(obj, now),
        info.get("kubeletVersion", ""),
        _node_address(obj, "InternalIP"),
        _node_address(obj, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event_source(obj: Json) -> str:
    component = obj.get("reportingComponent") or obj.get("reportingController")
    component = component or at(obj, "source.component", "")
    instance = obj.get("reportingInstance") or at(obj, "source.host", "")
    return f"{component}, {instance}" if instance else str(component)


def _event(obj: Json, now: datetime) -> list[Any]:
    started = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    ended = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or started
    times = obj.get("count") or obj.get("deprecatedCount") or 1
    if obj.get("series"):
        ended, times = at(obj, "series.lastObservedTime"), count(obj, "series.count")
    target = obj.get("involvedObject") or obj.get("regarding") or {}
    kind = f"{target['kind'].lower()}/" if target.get("kind") else ""
    return [
        since(ended, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        kind + target.get("name", ""),
        target.get("fieldPath", ""),
        _event_source(obj),
        (obj.get("message") or obj.get("note") or "").strip(),
        since(started, now),
        times,
        name(obj),
    ]


def _usage(prefix: str) -> Field:
    """``cpu: 1/2`` for each hard limit of a quota."""

    def text(obj: Json) -> str:
        hard, used = at(obj, "status.hard", {}), at(obj, "status.used", {})
        limits = prefix == "limits"
        chosen = [key for key in sorted(hard) if key.startswith("limits.") == limits]
        return ", ".join(f"{key}: {used.get(key, '0')}/{hard[key]}" for key in chosen)

    return text


def _subjects(kind: str) -> Field:
    def text(obj: Json) -> str:
        subjects = [item for item in obj.get("subjects") or () if item.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{item.get('namespace', '')}/{item.get('name', '')}" for item in subjects)
        return ", ".join(item.get("name", "") for item in subjects)

    return text


def _binding(obj: Json, now: datetime) -> list[Any]:
    role = f"{at(obj, 'roleRef.kind', '')}/{at(obj, 'roleRef.name', '')}"
    people = [_subjects(kind)(obj) for kind in ("User", "Group", "ServiceAccount")]
    return [name(obj), role, age(obj, now), *people]


def _modes(path: str) -> Field:
    return lambda obj: ",".join(_MODES.get(mode, mode) for mode in at(obj, path, []))


def _phase(obj: Json) -> str:
    return "Terminating" if at(obj, "metadata.deletionTimestamp") else str(at(obj, "status.phase", ""))


def _claim(obj: Json, now: datetime) -> list[Any]:
    return [
        name(obj),
        _phase(obj),
        at(obj, "spec.volumeName", ""),
        str(at(obj, "status.capacity.storage", "")),
        _modes("status.accessModes")(obj),
        at(obj, "spec.storageClassName", ""),
        at(obj, "spec.volumeAttributesClassName", UNSET),
        age(obj, now),
        at(obj, "spec.volumeMode", UNSET),
    ]


def _volume(obj: Json, now: datetime) -> list[Any]:
    claim = at(obj, "spec.claimRef")
    return [
        name(obj),
        str(at(obj, "spec.capacity.storage", "")),
        _modes("spec.accessModes")(obj),
        at(obj, "spec.persistentVolumeReclaimPolicy", ""),
        _phase(obj),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        at(obj, "spec.storageClassName", ""),
        at(obj, "spec.volumeAttributesClassName", UNSET),
        at(obj, "status.reason", ""),
        age(obj, now),
        at(obj, "spec.volumeMode", UNSET),
    ]


def _storage_class(obj: Json, now: datetime) -> list[Any]:
    default = at(obj, "metadata.annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        name(obj) + " (default)" * default,
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion", False)),
        age(obj, now),
    ]


def _request(obj: Json, now: datetime) -> list[Any]:
    states = [item.get("type", "") for item in at(obj, "status.conditions", [])]
    issued = ["Issued"] if at(obj, "status.certificate") else []
    seconds = at(obj, "spec.expirationSeconds")
    return [
        name(obj),
        age(obj, now),
        at(obj, "spec.signerName", NONE),
        at(obj, "spec.username", ""),
        human_duration(seconds) if seconds else NONE,
        ",".join(states + issued) or "Pending",
    ]


def _api_service(obj: Json) -> str:
    service = at(obj, "spec.service")
    return f"{service.get('namespace')}/{service.get('name')}" if service else "Local"


def _available(obj: Json) -> str:
    if is_true(obj, "Available"):
        return "True"
    available = condition(obj, "Available")
    return f"{available['status']} ({available.get('reason', '')})" if available else UNKNOWN


def _component(obj: Json, now: datetime) -> list[Any]:
    healthy: Json = next((item for item in obj.get("conditions") or () if item.get("type") == "Healthy"), {})
    status = {"True": "Healthy", "False": "Unhealthy"}.get(healthy.get("status", ""), "Unknown")
    return [name(obj), status, healthy.get("message", ""), healthy.get("error", "")]


_BINDINGS = Printer((*plain("Role"), AGE, *wide("Users", "Groups", "ServiceAccounts")), _binding)
_CREATED = Printer(plain("Created At"), _created)
_EVENTS = Printer(
    (
        Column("Last Seen"),
        Column("Type"),
        Column("Reason"),
        Column("Object"),
        *wide("Subobject", "Source"),
        Column("Message"),
        *wide("First Seen"),
        Column("Count", "integer", 1),
        Column("Name", "string", 1, "name"),
    ),
    _event,
)


def _param_kind(obj: Json) -> str:
    param_kind = (obj.get("spec") or {}).get("paramKind")
    return f"{param_kind.get('apiVersion', '')}/{param_kind.get('kind', '')}" if param_kind else UNSET


def _policy(field: str) -> Printer:
    """The printer of a policy whose expressions are counted in ``field``."""
    column = Column(field.capitalize(), "integer")

    def cells(obj: Json, now: datetime) -> list[Any]:
        return [name(obj), len((obj.get("spec") or {}).get(field) or ()), _param_kind(obj), age(obj, now)]

    return Printer((NAME, column, Column("ParamKind"), AGE), cells)


def _policy_binding(obj: Json, now: datetime) -> list[Any]:
    spec: Json = obj.get("spec") or {}
    ref: Json = spec.get("paramRef") or {}
    param = "/".join(filter(None, (ref.get("namespace"), ref.get("name")))) if ref.get("name") else ""
    return [name(obj), spec.get("policyName") or "", param or ("*" if ref else UNSET), age(obj, now)]


_POLICY_BINDING = Printer((NAME, *plain("PolicyName", "ParamRef")[1:], AGE), _policy_binding)
_HOOKS = Printer((NAME, Column("Webhooks", "integer"), AGE), _with_age(_size("webhooks")))

PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Node"): Printer(
        (
            *plain("Status", "Roles"),
            AGE,
            Column("Version"),
            *wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        _node,
    ),
    ("", "Namespace"): Printer((*plain("Status"), AGE), _with_age(_text("status.phase"))),
    ("", "Event"): _EVENTS,
    ("events.k8s.io", "Event"): _EVENTS,
    ("", "ComponentStatus"): Printer(plain("Status", "Message", "Error"), _component),
    ("", "ConfigMap"): Printer((NAME, Column("Data"), AGE), _with_age(_size("data", "binaryData"))),
    ("", "Secret"): Printer((*plain("Type", "Data"), AGE), _with_age(_text("type"), _size("data"))),
    ("", "ServiceAccount"): Printer((*plain("Secrets"), AGE), _with_age(_size("secrets"))),
    ("", "ResourceQuota"): Printer((*plain("Request", "Limit"), AGE), _with_age(_usage("requests"), _usage("limits"))),
    ("", "LimitRange"): _CREATED,
    ("", "PersistentVolumeClaim"): Printer(
        (
            *plain("Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass"),
            AGE,
            *wide("VolumeMode"),
        ),
        _claim,
    ),
    ("", "PersistentVolume"): Printer(
        (
            *plain("Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass"),
            Column("VolumeAttributesClass"),
            Column("Reason"),
            AGE,
            *wide("VolumeMode"),
        ),
        _volume,
    ),
    ("rbac.authorization.k8s.io", "RoleBinding"): _BINDINGS,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDINGS,
    ("rbac.authorization.k8s.io", "Role"): _CREATED,
    ("rbac.authorization.k8s.io", "ClusterRole"): _CREATED,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _CREATED,
    ("apiregistration.k8s.io", "APIService"): Printer(
        (*plain("Service", "Available"), AGE), _with_age(_api_service, _available)
    ),
    ("coordination.k8s.io", "Lease"): Printer((*plain("Holder"), AGE), _with_age(_text("spec.holderIdentity"))),
    ("node.k8s.io", "RuntimeClass"): Printer((*plain("Handler"), AGE), _with_age(_text("handler"))),
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        (NAME, Column("Value", "integer"), Column("Global-Default", "boolean"), AGE, Column("PreemptionPolicy")),
        lambda obj, now: [
            name(obj),
            count(obj, "value"),
            bool(obj.get("globalDefault", False)),
            age(obj, now),
            obj.get("preemptionPolicy", "PreemptLowerPriority"),
        ],
    ),
    ("storage.k8s.io", "StorageClass"): Printer(
        (*plain("Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion"), AGE),
        _storage_class,
    ),
    ("storage.k8s.io", "VolumeAttachment"): Printer(
        (*plain("Attacher", "PV", "Node"), Column("Attached", "boolean"), AGE),
        _with_age(
            _text("spec.attacher"),
            _text("spec.source.persistentVolumeName"),
            _text("spec.nodeName"),
            _text("status.attached", False),
        ),
    ),
    ("storage.k8s.io", "CSINode"): Printer((NAME, Column("Drivers", "integer"), AGE), _with_age(_size("spec.drivers"))),
    ("storage.k8s.io", "CSIDriver"): Printer(
        (*plain("AttachRequired", "PodInfoOnMount", "StorageCapacity", "Modes"), AGE),
        _with_age(
            _flag("spec.attachRequired"),
            _flag("spec.podInfoOnMount"),
            _flag("spec.storageCapacity"),
            lambda obj: ",".join(at(obj, "spec.volumeLifecycleModes", [])) or NONE,
        ),
    ),
    ("storage.k8s.io", "CSIStorageCapacity"): Printer(
        (*plain("StorageClassName", "Capacity"), AGE), _with_age(_text("storageClassName"), _text("capacity"))
    ),
    ("certificates.k8s.io", "CertificateSigningRequest"): Printer(
        (NAME, AGE, *plain("SignerName", "Requestor", "RequestedDuration", "Condition")[1:]), _request
    ),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _HOOKS,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _HOOKS,
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): _policy("mutations"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): _POLICY_BINDING,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): _policy("validations"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): _POLICY_BINDING,
}
"""By group and kind."""
