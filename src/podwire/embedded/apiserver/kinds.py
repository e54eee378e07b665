"""The registry of built-in kinds, for discovery and the request path.

A :class:`ResourceKind` is one resource in one group and version. Two kinds with the same ``storage`` are views of the
same objects (Events of ``v1`` and ``events.k8s.io/v1``; autoscalers of ``v1`` and ``v2``). CustomResource
definitions add more at run time, as values of the same type. Names, short names, categories, verbs and
subresources are those of Kubernetes 1.36's own discovery documents.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE = ("create",)
CONNECT = ("create", "get")
WRITE = ("get", "patch", "update")


class Subresource(msgspec.Struct, frozen=True):
    """One subresource; ``group``, ``version`` and ``kind`` are those of its body."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = "v1"


class ObjectForm(Protocol):
    """The defaults and selectable fields of a version of a custom kind."""

    selectable: tuple[str, ...]
    """Paths of fields to select by."""

    def filled(self, obj: dict[str, Any]) -> dict[str, Any]:
        """An object with the defaults of the version."""

    def render(self, raw: bytes) -> bytes:
        """The text of a stored object in the version, with defaults."""


class ResourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """One resource in one group and version.

    ``storage`` is the name of the table of its objects, ``group/plural`` by default. ``has_objects`` is False for
    reviews, which are answered and not stored, and for objects that are computed for each request. ``custom`` is True
    for kinds of CustomResourceDefinitions, ``webhook`` for kinds whose versions a webhook converts.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL
    subresources: tuple[Subresource, ...] = ()
    storage: str = ""
    has_objects: bool = True
    custom: bool = False
    webhook: bool = False
    list_kind: str = ""
    form: ObjectForm | None = None
    """Defaults and selectable fields of a custom kind; None when it has none."""
    table: str = ""
    """The name under which the objects are kept: ``storage``, or ``GROUP/PLURAL``."""

    def __post_init__(self) -> None:
        """Sets ``table`` once: it is read many times in each request."""
        msgspec.structs.force_setattr(self, "table", self.storage or f"{self.group}/{self.plural}")

    @property
    def api_version(self) -> str:
        """``apps/v1``, or ``v1`` for the legacy group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def shared(self) -> bool:
        """Whether its objects may be stored under another version."""
        return self.custom or self.kind in ("Event", "HorizontalPodAutoscaler")

    @property
    def resource(self) -> str:
        """``deployments.apps``, or ``pods`` in the legacy group: how messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def path(self) -> str:
        """The root of the group and version: ``/api/v1`` or ``/apis/apps/v1``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def subresource(self, name: str) -> Subresource | None:
        """The subresource of that name, or None."""
        return next((sub for sub in self.subresources if sub.name == name), None)

    @property
    def singular_name(self) -> str:
        """``deployment``: the kind in lower case unless given."""
        return self.singular or self.kind.lower()

    @property
    def has_status(self) -> bool:
        """Whether status is written by its own subresource only."""
        return any(sub.name == "status" for sub in self.subresources)


GROUPS: dict[str, tuple[str, ...]] = {
    "": ("v1",),
    "apiregistration.k8s.io": ("v1",),
    "apps": ("v1",),
    "events.k8s.io": ("v1",),
    "authentication.k8s.io": ("v1",),
    "authorization.k8s.io": ("v1",),
    "autoscaling": ("v2", "v1"),
    "batch": ("v1",),
    "certificates.k8s.io": ("v1",),
    "networking.k8s.io": ("v1",),
    "policy": ("v1",),
    "rbac.authorization.k8s.io": ("v1",),
    "storage.k8s.io": ("v1",),
    "admissionregistration.k8s.io": ("v1",),
    "apiextensions.k8s.io": ("v1",),
    "scheduling.k8s.io": ("v1",),
    "coordination.k8s.io": ("v1",),
    "node.k8s.io": ("v1",),
    "discovery.k8s.io": ("v1",),
    "flowcontrol.apiserver.k8s.io": ("v1",),
    "resource.k8s.io": ("v1",),
    "metrics.k8s.io": ("v1beta1",),
}
"""Groups in the order of discovery, each with its versions, the preferred one first."""


def _status(kind: str, group: str = "", version: str = "v1") -> Subresource:
    return Subresource("status", kind, WRITE, group, version)


_SCALE = Subresource("scale", "Scale", WRITE, "autoscaling", "v1")


def _core(
    kind: str, plural: str, short_names: tuple[str, ...] = (), *, status: bool = False, **rest: Any
) -> ResourceKind:
    extra: tuple[Subresource, ...] = rest.pop("subresources", ())
    subresources = (*extra, *((_status(kind),) if status else ()))
    return ResourceKind(
        group="",
        version="v1",
        kind=kind,
        plural=plural,
        short_names=short_names,
        subresources=subresources,
        **rest,
    )


def _named(
    group: str,
    kind: str,
    plural: str,
    short_names: tuple[str, ...] = (),
    *,
    status: bool = False,
    **rest: Any,
) -> ResourceKind:
    version: str = rest.pop("version", "v1")
    extra: tuple[Subresource, ...] = rest.pop("subresources", ())
    subresources = (*extra, *((_status(kind, group, version),) if status else ()))
    return ResourceKind(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        short_names=short_names,
        subresources=subresources,
        **rest,
    )


_POD_SUBRESOURCES = (
    Subresource("attach", "PodAttachOptions", CONNECT),
    Subresource("binding", "Binding", CREATE),
    Subresource("ephemeralcontainers", "Pod", WRITE),
    Subresource("eviction", "Eviction", CREATE, "policy", "v1"),
    Subresource("exec", "PodExecOptions", CONNECT),
    Subresource("log", "Pod", ("get",)),
    Subresource("portforward", "PodPortForwardOptions", CONNECT),
    Subresource("proxy", "PodProxyOptions", ("create", "delete", "get", "patch", "update")),
    Subresource("resize", "Pod", WRITE),
)
_PROXY_VERBS = ("create", "delete", "get", "patch", "update")
_REVIEW: dict[str, Any] = {"namespaced": False, "verbs": CREATE, "has_objects": False}
_MEASURED: dict[str, Any] = {"version": "v1beta1", "verbs": ("get", "list"), "has_objects": False}

_LIST: tuple[ResourceKind, ...] = (
    _core("Binding", "bindings", verbs=CREATE, has_objects=False),
    _core("ComponentStatus", "componentstatuses", ("cs",), namespaced=False, verbs=("get", "list"), has_objects=False),
    _core("ConfigMap", "configmaps", ("cm",)),
    _core("Endpoints", "endpoints", ("ep",)),
    _core("Event", "events", ("ev",)),
    _core("LimitRange", "limitranges", ("limits",)),
    _core(
        "Namespace",
        "namespaces",
        ("ns",),
        namespaced=False,
        status=True,
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        subresources=(Subresource("finalize", "Namespace", ("update",)),),
    ),
    _core(
        "Node",
        "nodes",
        ("no",),
        namespaced=False,
        status=True,
        subresources=(Subresource("proxy", "NodeProxyOptions", _PROXY_VERBS),),
    ),
    _core("PersistentVolumeClaim", "persistentvolumeclaims", ("pvc",), status=True),
    _core("PersistentVolume", "persistentvolumes", ("pv",), namespaced=False, status=True),
    _core("Pod", "pods", ("po",), categories=("all",), status=True, subresources=_POD_SUBRESOURCES),
    _core("PodTemplate", "podtemplates"),
    _core(
        "ReplicationController",
        "replicationcontrollers",
        ("rc",),
        categories=("all",),
        status=True,
        subresources=(_SCALE,),
    ),
    _core("ResourceQuota", "resourcequotas", ("quota",), status=True),
    _core("Secret", "secrets"),
    _core(
        "ServiceAccount",
        "serviceaccounts",
        ("sa",),
        subresources=(Subresource("token", "TokenRequest", CREATE, "authentication.k8s.io", "v1"),),
    ),
    _core(
        "Service",
        "services",
        ("svc",),
        categories=("all",),
        status=True,
        subresources=(Subresource("proxy", "ServiceProxyOptions", _PROXY_VERBS),),
    ),
    _named(
        "apiregistration.k8s.io",
        "APIService",
        "apiservices",
        namespaced=False,
        status=True,
        categories=("api-extensions",),
    ),
    _named("apps", "ControllerRevision", "controllerrevisions"),
    _named("apps", "DaemonSet", "daemonsets", ("ds",), categories=("all",), status=True),
    _named(
        "apps",
        "Deployment",
        "deployments",
        ("deploy",),
        categories=("all",),
        status=True,
        subresources=(_SCALE,),
    ),
    _named("apps", "ReplicaSet", "replicasets", ("rs",), categories=("all",), status=True, subresources=(_SCALE,)),
    _named(
        "apps",
        "StatefulSet",
        "statefulsets",
        ("sts",),
        categories=("all",),
        status=True,
        subresources=(_SCALE,),
    ),
    _named("events.k8s.io", "Event", "events", ("ev",), storage="/events"),
    _named("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", **_REVIEW),
    _named("authentication.k8s.io", "TokenReview", "tokenreviews", **_REVIEW),
    _named(
        "authorization.k8s.io",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        verbs=CREATE,
        has_objects=False,
    ),
    _named("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", **_REVIEW),
    _named("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews", **_REVIEW),
    _named("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", **_REVIEW),
    _named(
        "autoscaling",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        ("hpa",),
        version="v2",
        categories=("all",),
        status=True,
    ),
    _named(
        "autoscaling",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        ("hpa",),
        version="v1",
        categories=("all",),
        status=True,
    ),
    _named("batch", "CronJob", "cronjobs", ("cj",), categories=("all",), status=True),
    _named("batch", "Job", "jobs", categories=("all",), status=True),
    _named(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        ("csr",),
        namespaced=False,
        status=True,
        subresources=(Subresource("approval", "CertificateSigningRequest", WRITE, "certificates.k8s.io"),),
    ),
    _named("networking.k8s.io", "IngressClass", "ingressclasses", namespaced=False),
    _named("networking.k8s.io", "Ingress", "ingresses", ("ing",), status=True),
    _named("networking.k8s.io", "IPAddress", "ipaddresses", ("ip",), namespaced=False),
    _named("networking.k8s.io", "NetworkPolicy", "networkpolicies", ("netpol",)),
    _named("networking.k8s.io", "ServiceCIDR", "servicecidrs", namespaced=False, status=True),
    _named("policy", "PodDisruptionBudget", "poddisruptionbudgets", ("pdb",), status=True),
    _named("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    _named("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", namespaced=False),
    _named("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
    _named("rbac.authorization.k8s.io", "Role", "roles"),
    _named("storage.k8s.io", "CSIDriver", "csidrivers", namespaced=False),
    _named("storage.k8s.io", "CSINode", "csinodes", namespaced=False),
    _named("storage.k8s.io", "CSIStorageCapacity", "csistoragecapacities"),
    _named("storage.k8s.io", "StorageClass", "storageclasses", ("sc",), namespaced=False),
    _named("storage.k8s.io", "VolumeAttachment", "volumeattachments", namespaced=False, status=True),
    _named("storage.k8s.io", "VolumeAttributesClass", "volumeattributesclasses", ("vac",), namespaced=False),
    _named(
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _named(
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _named(
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _named(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        namespaced=False,
        status=True,
        categories=("api-extensions",),
    ),
    _named(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _named(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
    ),
    _named(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        ("crd", "crds"),
        namespaced=False,
        status=True,
        categories=("api-extensions",),
    ),
    _named("scheduling.k8s.io", "PriorityClass", "priorityclasses", ("pc",), namespaced=False),
    _named("coordination.k8s.io", "Lease", "leases"),
    _named("node.k8s.io", "RuntimeClass", "runtimeclasses", namespaced=False),
    _named("discovery.k8s.io", "EndpointSlice", "endpointslices"),
    _named("flowcontrol.apiserver.k8s.io", "FlowSchema", "flowschemas", namespaced=False, status=True),
    _named(
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        namespaced=False,
        status=True,
    ),
    _named("resource.k8s.io", "DeviceClass", "deviceclasses", namespaced=False),
    _named("resource.k8s.io", "ResourceClaim", "resourceclaims", status=True),
    _named("resource.k8s.io", "ResourceClaimTemplate", "resourceclaimtemplates"),
    _named("resource.k8s.io", "ResourceSlice", "resourceslices", namespaced=False),
    _named("metrics.k8s.io", "NodeMetrics", "nodes", namespaced=False, **_MEASURED),
    _named("metrics.k8s.io", "PodMetrics", "pods", **_MEASURED),
)

Key = tuple[str, str, str]
"""Group, version and plural."""

KINDS: dict[Key, ResourceKind] = {(kind.group, kind.version, kind.plural): kind for kind in _LIST}
"""Every built-in kind by group, version and plural."""

BY_KIND: dict[Key, ResourceKind] = {(kind.group, kind.version, kind.kind): kind for kind in _LIST}
"""Every built-in kind by group, version and kind."""


def kind_named(api_version: str, kind: str, kinds: Mapping[Key, ResourceKind]) -> ResourceKind | None:
    """The kind of that name in a group and version (``apps/v1``), or None."""
    for candidate in kinds.values():
        if candidate.kind == kind and candidate.api_version == api_version:
            return candidate
    return None
