"""Chooses the volume of a claim, and the next step for a claim or a volume. Pure.

A claim is bound in four steps, each a write: the volume's ``claimRef``, the volume's phase, the claim's
``volumeName``, the claim's phase. :func:`plan_claim` and :func:`plan_volume` look only at the objects as they are and
name the next step, so an interrupted binding continues where it stopped. The first step reserves the volume, so two
claims never get the same volume.

Cost: a claim looks at every volume once. Source: ``k8s.io/kubernetes/pkg/controller/volume/persistentvolume``.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from podwire.cluster.names import FOLDER_PROVISIONER
from podwire.errors import ConfigError
from podwire.model.meta import ObjectMeta, ObjectReference
from podwire.model.quantity import parse_milli
from podwire.model.storage import CLASS_BETA, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeSpec

PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Written by the scheduler: the node of the first pod that uses a claim of a class that waits for it."""

STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"

WAITS = "WaitForFirstConsumer"


class ClaimVolume(msgspec.Struct, frozen=True):
    """Next step: write the claim into the volume's ``claimRef``."""

    volume: PersistentVolume


class CompleteClaim(msgspec.Struct, frozen=True):
    """Next step: the volume is reserved; write its name, phase, modes, and size into the claim."""

    volume: PersistentVolume


class Provision(msgspec.Struct, frozen=True):
    """Next step: make a volume of this class."""

    storage_class: StorageClass


class WaitForVolume(msgspec.Struct, frozen=True):
    """Nothing can be done yet; the claim stays Pending and an Event says why."""

    reason: str
    message: str
    severity: Literal["Normal", "Warning"] = "Normal"
    provisioner: str = ""
    """The foreign provisioner that has to make the volume; empty for none."""


class LoseClaim(msgspec.Struct, frozen=True):
    """The claim's volume is gone or belongs to another claim: phase Lost."""

    message: str


class Expand(msgspec.Struct, frozen=True):
    """Next step: the bound claim asks for more than it has; the folder grows by itself, so write the new size."""

    volume: PersistentVolume


ClaimStep = ClaimVolume | CompleteClaim | Provision | WaitForVolume | LoseClaim | Expand


def class_name(claim: PersistentVolumeClaim) -> str:
    """The class that a claim asks for; empty for volumes without a class."""
    return claim.metadata.annotations.get(CLASS_BETA, claim.spec.storage_class_name or "")


def storage_milli(amounts: Mapping[str, str | int | float]) -> int:
    """The amount ``storage`` in thousandths of a byte; 0 where it is missing or no quantity."""
    try:
        return parse_milli(amounts.get("storage", "0"))
    except ConfigError:
        return 0


def is_claimed_by(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume's ``claimRef`` names the claim; one without a uid was written by an administrator."""
    reference, meta = volume.spec.claim_ref, claim.metadata
    if reference is None or (reference.namespace, reference.name) != (meta.namespace, meta.name):
        return False
    return reference.uid in ("", meta.uid)


def satisfies(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume has the class, size, modes, and labels that a claim asks for."""
    spec, claim_spec = volume.spec, claim.spec
    return (
        spec.storage_class_name == class_name(claim)
        and spec.volume_mode == claim_spec.volume_mode
        and set(claim_spec.access_modes) <= set(spec.access_modes)
        and storage_milli(spec.capacity) >= storage_milli(claim_spec.resources.requests)
        and (claim_spec.selector is None or claim_spec.selector.matches(volume.metadata.labels))
    )


def is_free(volume: PersistentVolume) -> bool:
    """Whether any claim may take the volume."""
    return (
        volume.spec.claim_ref is None
        and volume.metadata.deletion_timestamp is None
        and volume.status.phase in ("", "Pending", "Available")
    )


def choose_volume(claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> PersistentVolume | None:
    """The volume reserved for the claim, else the smallest free one that satisfies the claim; None without one."""
    free: list[PersistentVolume] = []
    for volume in volumes:
        if is_claimed_by(volume, claim):
            return volume
        if is_free(volume) and satisfies(volume, claim):
            free.append(volume)
    return min(free, key=lambda volume: (storage_milli(volume.spec.capacity), volume.metadata.name), default=None)


def plan_claim(
    claim: PersistentVolumeClaim,
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
    *,
    allowed: Iterable[PersistentVolume] | None = None,
) -> ClaimStep | None:
    """The next step for a claim; None when it has all it needs.

    ``allowed`` are the volumes that the selected node of a claim that waits for its first consumer can reach; None:
    all.
    """
    if claim.spec.volume_name:
        return _plan_named(claim, volumes)
    chosen_class = classes.get(class_name(claim))
    waits = chosen_class is not None and chosen_class.volume_binding_mode == WAITS
    candidates: Iterable[PersistentVolume] = volumes.values() if allowed is None else allowed
    if waits and SELECTED_NODE not in claim.metadata.annotations:
        candidates = [volume for volume in candidates if is_claimed_by(volume, claim)]
    volume = choose_volume(claim, candidates)
    if volume is not None:
        return CompleteClaim(volume) if _is_bound_to(volume, claim) else ClaimVolume(volume)
    if chosen_class is not None:
        return _plan_class(claim, chosen_class)
    if name := class_name(claim):
        return WaitForVolume("ProvisioningFailed", f'storageclass.storage.k8s.io "{name}" not found', "Warning")
    message = "no persistent volumes available for this claim and no storage class is set"
    return WaitForVolume("FailedBinding", message)


def _plan_class(claim: PersistentVolumeClaim, storage_class: StorageClass) -> ClaimStep:
    if storage_class.volume_binding_mode == WAITS and SELECTED_NODE not in claim.metadata.annotations:
        return WaitForVolume("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    if storage_class.provisioner == FOLDER_PROVISIONER:
        if claim.spec.volume_mode == "Block":
            message = f"{FOLDER_PROVISIONER} makes folders: spec.volumeMode must be Filesystem"
            return WaitForVolume("ProvisioningFailed", message, "Warning")
        if claim.spec.selector is not None:
            message = "claim.spec.selector is not supported for dynamic provisioning"
            return WaitForVolume("ProvisioningFailed", message, "Warning")
        return Provision(storage_class)
    if storage_class.provisioner == "kubernetes.io/no-provisioner":
        return WaitForVolume("FailedBinding", "no persistent volumes available for this claim")
    message = (
        "Waiting for a volume to be created either by the external provisioner "
        f"'{storage_class.provisioner}' or manually by the system administrator. If volume creation is delayed, please "
        "verify that the provisioner is running and correctly registered."
    )
    return WaitForVolume("ExternalProvisioning", message, provisioner=storage_class.provisioner)


def _is_bound_to(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return volume.spec.claim_ref is not None and volume.spec.claim_ref.uid == claim.metadata.uid


def _plan_named(claim: PersistentVolumeClaim, volumes: Mapping[str, PersistentVolume]) -> ClaimStep | None:
    """The step for a claim that names its volume: its author chose the volume, or the claim is bound."""
    name = claim.spec.volume_name
    volume = volumes.get(name)
    was_bound = BIND_COMPLETED in claim.metadata.annotations
    if volume is None:
        if was_bound:
            return LoseClaim("Bound claim has lost its PersistentVolume. Data on the volume is lost!")
        return WaitForVolume("FailedBinding", f'volume "{name}" not found')
    if not _is_bound_to(volume, claim):
        if was_bound and volume.spec.claim_ref is not None:
            return LoseClaim("Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        if is_claimed_by(volume, claim) or is_free(volume):
            if satisfies(volume, claim):
                return ClaimVolume(volume)
            message = f'Cannot bind to requested volume "{name}": its class, size, access modes or labels do not match'
            return WaitForVolume("VolumeMismatch", message, "Warning")
        return WaitForVolume("FailedBinding", f'volume "{name}" already bound to a different claim.', "Warning")
    if claim.status.phase != "Bound" or not was_bound:
        return CompleteClaim(volume)
    if storage_milli(claim.spec.resources.requests) > storage_milli(claim.status.capacity):
        return Expand(volume)
    return None


class SetPhase(msgspec.Struct, frozen=True):
    """Next step for a volume: write its phase."""

    phase: str
    message: str = ""


class RemoveVolume(msgspec.Struct, frozen=True):
    """Next step for a volume: remove its folder, then the object."""


VolumeStep = SetPhase | RemoveVolume


def plan_volume(volume: PersistentVolume, claims: Mapping[str, PersistentVolumeClaim]) -> VolumeStep | None:
    """The next step for a volume; None when nothing is to be done. ``claims`` are by ``namespace/name``."""
    reference = volume.spec.claim_ref
    phase = volume.status.phase
    if reference is None or not reference.uid:
        return _unless(phase, SetPhase("Available"))
    claim = claims.get(f"{reference.namespace}/{reference.name}")
    if claim is not None and claim.metadata.uid == reference.uid:
        return _unless(phase, SetPhase("Bound"))
    if phase not in ("Released", "Failed"):
        return SetPhase("Released")
    if phase == "Failed":
        return None
    policy = volume.spec.persistent_volume_reclaim_policy
    if policy == "Retain":
        return None
    if policy == "Delete" and is_folder(volume):
        return RemoveVolume()
    if policy == "Delete" and PROVISIONED_BY in volume.metadata.annotations:
        return None  # The provisioner that made the volume removes it.
    return SetPhase("Failed", f"error getting {_PLUGIN.get(policy, 'deleter')} volume plugin for this volume")


_PLUGIN = {"Recycle": "recycler", "Delete": "deleter"}


def _unless(phase: str, step: SetPhase) -> SetPhase | None:
    return None if phase == step.phase else step


def is_folder(volume: PersistentVolume) -> bool:
    """Whether the provisioner of this cluster made the volume."""
    return volume.metadata.annotations.get(PROVISIONED_BY) == FOLDER_PROVISIONER


def provisioned(claim: PersistentVolumeClaim, storage_class: StorageClass, folder: str) -> PersistentVolume:
    """The volume of a claim, reserved for the claim from the start; ``folder`` is an absolute path."""
    meta = claim.metadata
    path = f"{folder}/{volume_name(claim)}_{meta.namespace}_{meta.name}"
    return PersistentVolume(
        metadata=ObjectMeta(name=volume_name(claim), annotations={PROVISIONED_BY: FOLDER_PROVISIONER}),
        spec=VolumeSpec(
            access_modes=claim.spec.access_modes,
            capacity={"storage": claim.spec.resources.requests.get("storage", "0")},
            claim_ref=claim_reference(claim),
            persistent_volume_reclaim_policy=storage_class.reclaim_policy,
            storage_class_name=storage_class.metadata.name,
            volume_mode=claim.spec.volume_mode,
            host_path={"path": path, "type": "DirectoryOrCreate"},
        ),
    )


def volume_name(claim: PersistentVolumeClaim) -> str:
    """The name of the volume for a claim; every attempt has the same name, so a claim gets one volume."""
    return f"pvc-{claim.metadata.uid}"


def claim_reference(claim: PersistentVolumeClaim) -> ObjectReference:
    """The ``claimRef`` of a claim."""
    meta = claim.metadata
    return ObjectReference(
        api_version="v1", kind="PersistentVolumeClaim", namespace=meta.namespace, name=meta.name, uid=meta.uid
    )
