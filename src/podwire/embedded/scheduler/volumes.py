"""The demands of a pod's claims: claims that must be bound first, and nodes that reach the volumes. Pure.

A claim of a class with the binding mode ``WaitForFirstConsumer`` is bound only after the scheduler has chosen a node
for the first pod that uses it: the scheduler writes the node into an annotation of the claim, the volume binder binds
the claim to a volume which that node reaches, and then the pod is bound.

Source: ``k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding``.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.cluster.names import FOLDER_PROVISIONER
from podwire.embedded.scheduler.matching import node_selected
from podwire.embedded.storage.binding import WAITS, choose_volume, class_name
from podwire.embedded.storage.claims import claim_of, claims_of
from podwire.model.node import Node
from podwire.model.pod import NodeSelector, Pod
from podwire.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

_ALONE = "ReadWriteOncePod"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
AFFINITY_CONFLICT = "node(s) had volume node affinity conflict"
CLAIM_IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"


class VolumeDemand(msgspec.Struct, frozen=True):
    """The demands of the claims of one pod."""

    problem: str = ""
    """Why no node can take the pod yet; empty when a node can."""
    selectors: tuple[NodeSelector, ...] = ()
    """The nodes that reach the pod's bound volumes."""
    delayed: tuple[PersistentVolumeClaim, ...] = ()
    """Claims to be bound once the pod's node is chosen."""
    static: tuple[PersistentVolumeClaim, ...] = ()
    """The claims of ``delayed`` that need an existing volume."""
    in_use: bool = False
    """Whether another pod uses a claim that only one pod may use (``ReadWriteOncePod``)."""


NO_CLAIMS = VolumeDemand()
"""The demand of a pod without claims."""


class StorageObjects(msgspec.Struct, frozen=True):
    """Claims by ``namespace/name``, volumes and classes by name."""

    claims: Mapping[str, PersistentVolumeClaim]
    volumes: Mapping[str, PersistentVolume]
    classes: Mapping[str, StorageClass]
    users: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The number of placed pods that use a claim, by ``namespace/name``."""


def volume_demand(pod: Pod, storage: StorageObjects) -> VolumeDemand:
    """The demand of the claims of a pod."""
    names = claims_of(pod)
    if not names:
        return NO_CLAIMS
    selectors: list[NodeSelector] = []
    delayed: list[PersistentVolumeClaim] = []
    is_static = False
    for name in names:
        key = f"{pod.metadata.namespace}/{name}"
        claim = storage.claims.get(key)
        is_static |= claim is not None and _ALONE in claim.spec.access_modes and storage.users.get(key, 0) > 0
        if claim is None:
            return VolumeDemand(problem=_missing(pod, name))
        if claim.metadata.deletion_timestamp is not None:
            return VolumeDemand(problem=f'persistentvolumeclaim "{name}" is being deleted')
        if claim.status.phase == "Lost":
            problem = (
                f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
            )
            return VolumeDemand(problem=problem)
        if claim.status.phase == "Bound":
            volume = storage.volumes.get(claim.spec.volume_name)
            if volume is not None and (selector := volume.node_selector) is not None:
                selectors.append(selector)
        elif _waits(claim, storage.classes):
            delayed.append(claim)
        else:
            return VolumeDemand(problem=UNBOUND)
    static = tuple(claim for claim in delayed if storage.classes[class_name(claim)].provisioner != FOLDER_PROVISIONER)
    return VolumeDemand("", tuple(selectors), tuple(delayed), static, is_static)


def _missing(pod: Pod, claim: str) -> str:
    if any(claim_of(volume, pod.metadata.name) == claim and "ephemeral" in volume for volume in pod.spec.volumes):
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{claim}"'
    return f'persistentvolumeclaim "{claim}" not found'


def _waits(claim: PersistentVolumeClaim, classes: Mapping[str, StorageClass]) -> bool:
    storage_class = classes.get(class_name(claim))
    return storage_class is not None and storage_class.volume_binding_mode == WAITS and not claim.spec.volume_name


def volume_refusal(demand: VolumeDemand, volumes: Iterable[PersistentVolume], node: Node) -> str:
    """Why the pod's volumes keep it from a node; empty when they do not."""
    if demand.in_use:
        return CLAIM_IN_USE
    if any(not node_selected(selector, node) for selector in demand.selectors):
        return AFFINITY_CONFLICT
    for claim in demand.static:
        reachable = [volume for volume in volumes if node_selected(volume.node_selector, node)]
        if choose_volume(claim, reachable) is None:
            return NO_VOLUME
    return ""
