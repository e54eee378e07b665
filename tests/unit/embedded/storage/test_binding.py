"""The next step for claims and volumes, as tables."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.storage.binding import (
    ClaimVolume,
    CompleteClaim,
    Expand,
    LoseClaim,
    Provision,
    RemoveVolume,
    SetPhase,
    WaitForVolume,
    plan_claim,
    plan_volume,
    provisioned,
)
from podwire.model.meta import ObjectMeta
from podwire.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass


def storage_class(name: str, provisioner: str, mode: str = "Immediate") -> StorageClass:
    return StorageClass(metadata=ObjectMeta(name=name), provisioner=provisioner, volume_binding_mode=mode)


CLASSES = {
    item.metadata.name: item
    for item in (
        storage_class("standard", "podwire.io/folder"),
        storage_class("late", "podwire.io/folder", "WaitForFirstConsumer"),
        storage_class("cloud", "csi.example.com"),
        storage_class("manual", "kubernetes.io/no-provisioner"),
    )
}


def claim(phase: str = "Pending", annotations: dict[str, str] | None = None, **spec: Any) -> PersistentVolumeClaim:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    meta = {"name": "data", "namespace": "shop", "uid": "u1", "annotations": annotations or {}}
    status = {"phase": phase, "capacity": {"storage": "1Gi"}}
    return msgspec.convert({"metadata": meta, "spec": asked, "status": status}, PersistentVolumeClaim)


def volume(
    name: str, phase: str = "Available", annotations: dict[str, str] | None = None, **spec: Any
) -> PersistentVolume:
    have = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "hostPath": {"path": "/v"}, **spec}
    meta = {"name": name, "annotations": annotations or {}}
    return msgspec.convert({"metadata": meta, "spec": have, "status": {"phase": phase}}, PersistentVolume)


OWN = {"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": "u1"}
OTHER = OWN | {"uid": "u2"}
DONE = {"pv.kubernetes.io/bind-completed": "yes"}
NODE = {"volume.kubernetes.io/selected-node": "node-1"}


def step_of(item: PersistentVolumeClaim, *volumes: PersistentVolume) -> tuple[Any, ...]:
    step = plan_claim(item, {v.metadata.name: v for v in volumes}, CLASSES)
    match step:
        case ClaimVolume(found) | CompleteClaim(found) | Expand(found):
            return type(step), found.metadata.name
        case Provision(chosen):
            return Provision, chosen.metadata.name
        case WaitForVolume():
            return WaitForVolume, step.reason
        case LoseClaim():
            return (LoseClaim,)
    return (None,)


@pytest.mark.parametrize(
    ("item", "volumes", "step"),
    [
        (claim(storageClassName="standard"), (), (Provision, "standard")),
        (claim(storageClassName="standard"), (volume("a", storageClassName="standard"),), (ClaimVolume, "a")),
        (claim(), (volume("big", capacity={"storage": "9Gi"}), volume("small")), (ClaimVolume, "small")),
        (claim(), (volume("tiny", capacity={"storage": "1Mi"}),), (WaitForVolume, "FailedBinding")),
        (claim(accessModes=["ReadWriteMany"]), (volume("a"),), (WaitForVolume, "FailedBinding")),
        (claim(volumeMode="Block"), (volume("a"),), (WaitForVolume, "FailedBinding")),
        (claim(), (volume("a", claimRef=OTHER),), (WaitForVolume, "FailedBinding")),
        (claim(), (volume("a", "Released"),), (WaitForVolume, "FailedBinding")),
        (claim(selector={"matchLabels": {"disk": "ssd"}}), (volume("a"),), (WaitForVolume, "FailedBinding")),
        (claim(), (volume("a"), volume("kept", claimRef={k: OWN[k] for k in ("namespace", "name")})),
         (ClaimVolume, "kept")),
        (claim(), (volume("a", claimRef=OWN),), (CompleteClaim, "a")),
        (claim(storageClassName="none"), (), (WaitForVolume, "ProvisioningFailed")),
        (claim(storageClassName="cloud"), (), (WaitForVolume, "ExternalProvisioning")),
        (claim(storageClassName="manual"), (), (WaitForVolume, "FailedBinding")),
        (claim(storageClassName="standard", volumeMode="Block"), (), (WaitForVolume, "ProvisioningFailed")),
        (claim(storageClassName="late"), (), (WaitForVolume, "WaitForFirstConsumer")),
        (claim(storageClassName="late"), (volume("a", storageClassName="late"),),
         (WaitForVolume, "WaitForFirstConsumer")),
        (claim(annotations=NODE, storageClassName="late"), (), (Provision, "late")),
        (claim(annotations=NODE, storageClassName="late"), (volume("a", storageClassName="late"),), (ClaimVolume, "a")),
        (claim(volumeName="a"), (volume("a"),), (ClaimVolume, "a")),
        (claim(volumeName="a"), (volume("a", claimRef=OTHER),), (WaitForVolume, "FailedBinding")),
        (claim(volumeName="a", storageClassName="standard"), (volume("a"),), (WaitForVolume, "VolumeMismatch")),
        (claim(volumeName="a"), (), (WaitForVolume, "FailedBinding")),
        (claim(volumeName="a"), (volume("a", claimRef=OWN),), (CompleteClaim, "a")),
        (claim("Bound", DONE, volumeName="a"), (volume("a", claimRef=OWN),), (None,)),
        (claim("Bound", DONE, volumeName="a"), (), (LoseClaim,)),
        (claim("Bound", DONE, volumeName="a"), (volume("a", claimRef=OTHER),), (LoseClaim,)),
        (claim("Bound", DONE, volumeName="a", resources={"requests": {"storage": "3Gi"}}),
         (volume("a", claimRef=OWN),), (Expand, "a")),
    ],
)  # fmt: skip
def test_next_step_for_a_claim(
    item: PersistentVolumeClaim, volumes: tuple[PersistentVolume, ...], step: tuple[Any, ...]
) -> None:
    assert step_of(item, *volumes) == step


MADE_HERE = {"pv.kubernetes.io/provisioned-by": "podwire.io/folder"}
DELETE = {"persistentVolumeReclaimPolicy": "Delete"}


@pytest.mark.parametrize(
    ("item", "claims", "step"),
    [
        (volume("a", "Pending"), (), SetPhase("Available")),
        (volume("a"), (), None),
        (volume("a", claimRef=OWN), (claim(),), SetPhase("Bound")),
        (volume("a", "Bound", claimRef=OWN), (claim(),), None),
        (volume("a", "Bound", claimRef=OWN), (), SetPhase("Released")),
        (volume("a", "Bound", claimRef=OTHER), (claim(),), SetPhase("Released")),
        (volume("a", "Released", claimRef=OWN), (), None),
        (volume("a", "Released", MADE_HERE, claimRef=OWN, **DELETE), (), RemoveVolume()),
        (volume("a", "Released", {"pv.kubernetes.io/provisioned-by": "csi"}, claimRef=OWN, **DELETE), (), None),
        (volume("a", "Failed", MADE_HERE, claimRef=OWN, **DELETE), (), None),
    ],
)
def test_next_step_for_a_volume(
    item: PersistentVolume, claims: tuple[PersistentVolumeClaim, ...], step: SetPhase | RemoveVolume | None
) -> None:
    assert plan_volume(item, dict.fromkeys(("shop/data",), *claims) if claims else {}) == step


def test_volume_with_policy_recycle_fails() -> None:
    step = plan_volume(volume("a", "Released", claimRef=OWN, persistentVolumeReclaimPolicy="Recycle"), {})
    assert isinstance(step, SetPhase)
    assert (step.phase, "recycler" in step.message) == ("Failed", True)


def test_provisioned_volume_is_reserved_for_its_claim() -> None:
    created = provisioned(claim(storageClassName="standard"), CLASSES["standard"], "/state/volumes")
    assert created.metadata.name == "pvc-u1"
    assert created.spec.claim_ref is not None
    assert created.spec.claim_ref.uid == "u1"
    assert created.spec.persistent_volume_reclaim_policy == "Delete"
    assert created.spec.host_path == {"path": "/state/volumes/pvc-u1_shop_data", "type": "DirectoryOrCreate"}
