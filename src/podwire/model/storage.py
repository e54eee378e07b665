"""StorageClass, PersistentVolume and PersistentVolumeClaim, with the fields that podwire uses.

The source of a volume (``hostPath``, ``local``, ``nfs``, ...) is kept as JSON: a kubelet that does not support the kind
has to name it.
"""

from typing import Any

from podwire.model.meta import Fact, ObjectMeta, ObjectReference
from podwire.model.pod import NodeSelector
from podwire.model.selector import LabelSelector

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
"""The annotation, ``"true"``, of the StorageClass that claims without a class get."""

CLASS_BETA = "volume.beta.kubernetes.io/storage-class"
"""The annotation of a claim that takes precedence over the field for the class; it is older than the field."""

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"

VOLUME_SETTINGS = frozenset({
    "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity", "persistentVolumeReclaimPolicy",
    "storageClassName", "volumeAttributesClassName", "volumeMode",
})  # fmt: skip
"""The fields of a volume's spec that are not its source."""

DEFAULT_CLASS_BETA = "storageclass.beta.kubernetes.io/is-default-class"
"""The earlier name of the same annotation, which Kubernetes still reads."""


class StorageClass(Fact, frozen=True):
    """Settings of the volumes of one class (``storage.k8s.io/v1``)."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False
    parameters: dict[str, str] = {}
    mount_options: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether claims without a class get this one."""
        annotations = self.metadata.annotations
        return "true" in (annotations.get(DEFAULT_CLASS), annotations.get(DEFAULT_CLASS_BETA))


class VolumeResources(Fact, frozen=True):
    """Requested and largest size; the only resource is ``storage``."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ClaimSpec(Fact, frozen=True):
    """The desired state of a claim. ``storage_class_name`` None: the default class; empty: volumes without a class."""

    access_modes: tuple[str, ...] = ()
    resources: VolumeResources = VolumeResources()
    selector: LabelSelector | None = None
    storage_class_name: str | None = None
    volume_mode: str = "Filesystem"
    volume_name: str = ""


class ClaimStatus(Fact, frozen=True):
    """Pending, Bound or Lost."""

    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, str | int | float] = {}


class PersistentVolumeClaim(Fact, frozen=True):
    """A request for storage in a namespace (``v1``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class VolumeNodeAffinity(Fact, frozen=True):
    """The nodes from which a volume is reachable; None: all."""

    required: NodeSelector | None = None


class VolumeSpec(Fact, frozen=True):
    """The desired state of a volume, and its claim."""

    access_modes: tuple[str, ...] = ()
    capacity: dict[str, str | int | float] = {}
    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    host_path: dict[str, Any] | None = None
    local: dict[str, Any] | None = None


class VolumeStatus(Fact, frozen=True):
    """Available, Bound, Released or Failed, and why."""

    phase: str = ""
    reason: str = ""
    message: str = ""


class PersistentVolume(Fact, frozen=True):
    """Storage of the cluster (``v1``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()

    @property
    def node_selector(self) -> NodeSelector | None:
        """The nodes from which the volume is reachable; None for all."""
        return self.spec.node_affinity.required if self.spec.node_affinity is not None else None


def default_class(classes: list[StorageClass]) -> StorageClass | None:
    """The default class: of several the newest, then the first by name; None without one."""
    marked = sorted((item for item in classes if item.is_default), key=lambda item: item.metadata.name)
    return max(marked, key=lambda item: item.metadata.creation_timestamp or "", default=None)
