"""The objects of a cluster that an upgrade of its network depends on, as one value. Pure.

Nodes, pods and Services decode into small structs, since a large cluster has many; the few workloads, ConfigMaps and
budgets keep every field, because a plan compares and patches them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.model.meta import Condition, Fact, ObjectMeta, is_true
from podwire.model.node import ZONE_LABEL, NodeSpec
from podwire.model.service import Service
from podwire.model.workload import PodDisruptionBudget
from podwire.upgrade.plan.versions import Version, parse_version

Json = dict[str, Any]
SYSTEM = "kube-system"

CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


class NodeInfo(Fact, frozen=True):
    """The programs of a node, as the kubelet reports them."""

    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    architecture: str = ""
    operating_system: str = "linux"


class InventoryNodeStatus(Fact, frozen=True):
    """The part of a Node's status that matters here."""

    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()


class InventoryNode(Fact, frozen=True):
    """A Node with its programs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: InventoryNodeStatus = InventoryNodeStatus()

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.metadata.name

    @property
    def zone(self) -> str:
        """The zone; empty when the node has no zone label."""
        return self.metadata.labels.get(ZONE_LABEL, "")

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True."""
        return is_true(self.status.conditions, "Ready")

    @property
    def control_plane(self) -> bool:
        """Whether the node has a label of the control plane."""
        return any(label in self.metadata.labels for label in CONTROL_PLANE_LABELS)

    @property
    def kubelet(self) -> Version | None:
        """The version of the kubelet; None when the node does not tell."""
        return parse_version(self.status.node_info.kubelet_version)


class InventoryContainer(Fact, frozen=True):
    """The name and image of a container."""

    name: str = ""
    image: str = ""


class InventoryPodSpec(Fact, frozen=True):
    """The part of a pod's spec that matters here."""

    node_name: str = ""
    containers: tuple[InventoryContainer, ...] = ()


class InventoryPodStatus(Fact, frozen=True):
    """The part of a pod's status that matters here."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class InventoryPod(Fact, frozen=True):
    """A pod: labels, owner, node and images."""

    metadata: ObjectMeta = ObjectMeta()
    spec: InventoryPodSpec = InventoryPodSpec()
    status: InventoryPodStatus = InventoryPodStatus()

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True."""
        return is_true(self.status.conditions, "Ready")


class StorageVersions(Fact, frozen=True):
    """The versions of a custom kind."""

    name: str
    """As ``ippools.crd.projectcalico.org``."""
    storage: str
    """The version in which new objects are stored."""
    stored_versions: tuple[str, ...]
    """All versions in which objects may be stored."""
    served: tuple[str, ...]


class IngressClassController(Fact, frozen=True):
    """An IngressClass and the controller that it names."""

    ingress_class: str
    controller: str


class Inventory(Fact, frozen=True, kw_only=True):
    """Everything that the plan reads."""

    cluster: str = ""
    """The UID of the namespace kube-system."""
    version: str = ""
    """``gitVersion`` of the API server that answered."""
    servers: Mapping[str, str] = {}
    """By address the version of each API server, empty where it did not answer; empty with one API server."""
    nodes: tuple[InventoryNode, ...] = ()
    pods: tuple[InventoryPod, ...] = ()
    """Those of kube-system, of namespaces of networks, and of namespaces with a PodDisruptionBudget."""
    daemonsets: tuple[Json, ...] = ()
    deployments: tuple[Json, ...] = ()
    config_maps: Mapping[str, Mapping[str, str]] = {}
    """``data`` by ``namespace/name``, of those that the plan reads."""
    services: tuple[Service, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()
    autoscalers: tuple[Json, ...] = ()
    """HorizontalPodAutoscalers of kube-system."""
    ingress_controllers: tuple[IngressClassController, ...] = ()
    custom_kinds: tuple[StorageVersions, ...] = ()
    helm_charts: tuple[str, ...] = ()
    """HelmChart objects of k3s and RKE2, as ``namespace/name``."""
    unreadable: tuple[str, ...] = ()
    """Kinds that the user must not read."""

    def daemonset(self, namespace: str, name: str) -> Json | None:
        """The DaemonSet; None when it is not there."""
        return _named(self.daemonsets, namespace, name)

    def deployment(self, namespace: str, name: str) -> Json | None:
        """The Deployment; None when it is not there."""
        return _named(self.deployments, namespace, name)

    def pods_with(self, namespace: str, label: str, value: str) -> Iterator[InventoryPod]:
        """The pods of a namespace with a label."""
        for pod in self.pods:
            if pod.metadata.namespace == namespace and pod.metadata.labels.get(label) == value:
                yield pod


def _named(objects: tuple[Json, ...], namespace: str, name: str) -> Json | None:
    for obj in objects:
        meta = obj.get("metadata", {})
        if meta.get("namespace", "") == namespace and meta.get("name") == name:
            return obj
    return None


def template_of(workload: Json) -> Json:
    """The spec of the pods of a workload; empty where the object has none."""
    template = (workload.get("spec") or {}).get("template") or {}
    spec = template.get("spec") or {}
    return spec if isinstance(spec, dict) else {}


def containers_of(workload: Json) -> tuple[tuple[Json, bool], ...]:
    """The containers of a workload, each with whether it is an init container; init containers come last."""
    spec = template_of(workload)
    mains = [(container, False) for container in spec.get("containers") or ()]
    return tuple(mains + [(container, True) for container in spec.get("initContainers") or ()])
