"""Persistent volumes: the loops around ``binding``, which bind claims, make and remove volumes, and set phases.

Guarantees: 1. two claims never get the same volume, since a write to a volume names the version that was read; 2. a
step that was interrupted is taken again; 3. a folder is removed only after the claim is gone and the volume is
Released with the policy Delete; 4. the Event of a claim that waits is written once per reason.

Cost: four writes to bind a claim, one more to make its volume.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.scheduler.matching import node_selected
from podwire.embedded.storage import binding, folders
from podwire.embedded.storage.binding import (
    ClaimStep,
    ClaimVolume,
    CompleteClaim,
    Expand,
    LoseClaim,
    Provision,
    WaitForVolume,
)
from podwire.errors import AlreadyExists, ConfigError, NotFound
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.resources import NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from podwire.model.meta import key_of
from podwire.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass, default_class
from podwire.runtime.supervise import Supervisor

_RETRY_S = 5.0
"""How long a folder that could not be made is not tried again."""


class VolumeBinder:
    """Binds claims to volumes; ``folder`` holds the volumes of the class ``standard``."""

    def __init__(self, environment: Environment, folder: str) -> None:
        self._client = environment.client
        self._folder = Path(folder)
        self._recorder = environment.recorder("persistentvolume-controller")
        self._claims = environment.of(PERSISTENTVOLUMECLAIMS)
        self._volumes = environment.of(PERSISTENTVOLUMES)
        self._classes = environment.of(STORAGECLASSES)
        self._nodes = environment.of(NODES)
        self._reported: dict[str, str] = {}
        self._claim_loop = environment.loop("persistentvolumeclaim", self._reconcile_claim)
        self._volume_loop = environment.loop("persistentvolume", self._reconcile_volume)
        self._claims.subscribe(self._claim_changed)
        self._volumes.subscribe(self._volume_changed)
        self._classes.subscribe(lambda _key, _old, _new: self._touch_pending())

    def start(self, supervisor: Supervisor) -> None:
        """Starts both loops."""
        self._claim_loop.start(supervisor)
        self._volume_loop.start(supervisor)

    def _claim_changed(self, key: str, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        self._claim_loop.touch(key)
        for claim in (old, new):
            if claim is not None and claim.spec.volume_name:
                self._volume_loop.touch(claim.spec.volume_name)
        if new is None and old is not None:
            self._reported.pop(old.metadata.uid, None)
            self._volume_loop.touch(binding.volume_name(old))

    def _volume_changed(self, key: str, _old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        self._volume_loop.touch(key)
        owner = new.spec.claim_ref if new is not None else None
        if owner is not None:
            self._claim_loop.touch(f"{owner.namespace}/{owner.name}")
        else:
            self._touch_pending()

    def _touch_pending(self) -> None:
        for key, claim in self._claims.objects.items():
            if claim.status.phase != "Bound":
                self._claim_loop.touch(key)

    async def _reconcile_claim(self, key: str) -> None:
        claim = self._claims.get(key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return
        if claim.spec.storage_class_name is None and not claim.spec.volume_name and await self._give_class(claim):
            return
        step = binding.plan_claim(claim, self._volumes.objects, self._classes.objects, allowed=self._reachable(claim))
        if step is not None:
            await self._take_step(claim, step)

    async def _give_class(self, claim: PersistentVolumeClaim) -> bool:
        """Gives a claim without a class the default class, which may have been made after the claim."""
        chosen = default_class(list(self._classes.objects.values()))
        if chosen is None or binding.CLASS_BETA in claim.metadata.annotations:
            return False
        await self._patch_claim(claim, {"spec": {"storageClassName": chosen.metadata.name}})
        return True

    def _reachable(self, claim: PersistentVolumeClaim) -> Iterable[PersistentVolume] | None:
        node = self._nodes.get(claim.metadata.annotations.get(binding.SELECTED_NODE, ""))
        if node is None:
            return None
        return [volume for volume in self._volumes.objects.values() if node_selected(_node_selector(volume), node)]

    async def _take_step(self, claim: PersistentVolumeClaim, step: ClaimStep) -> None:
        match step:
            case ClaimVolume(volume):
                await self._claim_volume(claim, volume)
            case CompleteClaim(volume):
                await self._complete(claim, volume)
            case Provision(storage_class):
                await self._provision(claim, storage_class)
            case WaitForVolume():
                await self._wait(claim, step)
            case LoseClaim(message):
                if claim.status.phase != "Lost":
                    await self._patch_claim(claim, {"status": {"phase": "Lost"}}, "status")
                    self._report(claim, "Warning", "ClaimLost", message)
            case Expand(volume):
                await self._expand(claim, volume)

    async def _claim_volume(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        body: dict[str, Any] = {"spec": {"claimRef": msgspec.to_builtins(binding.claim_reference(claim))}}
        if volume.spec.claim_ref is None:
            body["metadata"] = {"annotations": {binding.BOUND_BY_CONTROLLER: "yes"}}
        await self._patch_volume(volume, body)

    async def _complete(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        notes = {binding.BIND_COMPLETED: "yes"}
        if not claim.spec.volume_name:
            notes[binding.BOUND_BY_CONTROLLER] = "yes"
        body = {"metadata": {"annotations": notes}, "spec": {"volumeName": volume.metadata.name}}
        await self._patch_claim(claim, body)
        await self._write_bound(claim, volume)

    async def _write_bound(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        status = {
            "phase": "Bound",
            "accessModes": list(volume.spec.access_modes),
            "capacity": dict(volume.spec.capacity),
        }
        body = {"metadata": {"uid": claim.metadata.uid}, "status": status}
        meta = claim.metadata
        await self._client.patch(PERSISTENTVOLUMECLAIMS, meta.name, body, meta.namespace, subresource="status")
        self._volume_loop.touch(volume.metadata.name)

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> None:
        if self._volumes.get(binding.volume_name(claim)) is not None:
            return  # It exists and is another claim's, or is being deleted: its next event brings the claim back.
        note = claim.metadata.annotations.get(binding.STORAGE_PROVISIONER)
        if note != binding.PROVISIONER:
            notes = {"annotations": {binding.STORAGE_PROVISIONER: binding.PROVISIONER}}
            await self._patch_claim(claim, {"metadata": notes})
        volume = binding.provisioned(claim, storage_class, str(self._folder))
        try:
            await asyncio.to_thread(folders.make, volume)
        except OSError as failure:
            self._report(claim, "Warning", "ProvisioningFailed", f"cannot make the folder of the volume: {failure}")
            self._claim_loop.queue.add_after(key_of(claim.metadata), _RETRY_S)
            return
        body = {"apiVersion": "v1", "kind": "PersistentVolume"} | msgspec.to_builtins(volume)
        try:
            await self._client.create(PERSISTENTVOLUMES, body)
        except AlreadyExists:
            return
        name = volume.metadata.name
        self._report(claim, "Normal", "ProvisioningSucceeded", f"Successfully provisioned volume {name}")

    async def _wait(self, claim: PersistentVolumeClaim, step: WaitForVolume) -> None:
        if step.provisioner and claim.metadata.annotations.get(binding.STORAGE_PROVISIONER) != step.provisioner:
            notes = {"annotations": {binding.STORAGE_PROVISIONER: step.provisioner}}
            await self._patch_claim(claim, {"metadata": notes})
        if claim.status.phase != "Pending":
            await self._patch_claim(claim, {"status": {"phase": "Pending"}}, "status")
        if self._reported.get(claim.metadata.uid) != step.message:
            self._reported[claim.metadata.uid] = step.message
            self._report(claim, step.severity, step.reason, step.message)

    async def _expand(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        if not binding.is_folder(volume):
            return
        size = claim.spec.resources.requests["storage"]
        if binding.storage_milli(volume.spec.capacity) < binding.storage_milli({"storage": size}):
            await self._patch_volume(volume, {"spec": {"capacity": {"storage": size}}})
            return  # The volume's event brings the claim back, which then takes over the volume's size.
        await self._write_bound(claim, volume)

    async def _reconcile_volume(self, name: str) -> None:
        volume = self._volumes.get(name)
        if volume is None:
            return
        step = binding.plan_volume(volume, self._claims.objects)
        if isinstance(step, binding.SetPhase):
            await self._set_phase(volume, step)
        elif step is not None:
            await self._remove(volume)

    async def _set_phase(self, volume: PersistentVolume, step: binding.SetPhase) -> None:
        status = {"phase": step.phase, "message": step.message or None}
        body = {"metadata": {"uid": volume.metadata.uid}, "status": status}
        await self._client.patch(PERSISTENTVOLUMES, volume.metadata.name, body, subresource="status")
        if step.phase == "Failed":
            subject = reference("v1", "PersistentVolume", volume.metadata)
            self._recorder.event(subject, "Warning", "VolumeFailedDelete", step.message)

    async def _remove(self, volume: PersistentVolume) -> None:
        try:
            await asyncio.to_thread(folders.remove, volume, self._folder)
        except (ConfigError, OSError) as failure:
            await self._set_phase(volume, binding.SetPhase("Failed", str(failure)))
            return
        if volume.metadata.deletion_timestamp is None:
            try:
                await self._client.delete(PERSISTENTVOLUMES, volume.metadata.name, uid=volume.metadata.uid)
            except NotFound:
                return

    async def _patch_volume(self, volume: PersistentVolume, body: dict[str, Any]) -> None:
        """Patches the version of the volume that was read.

        Raises: Conflict when it changed since.
        """
        meta = {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version}
        body = body | {"metadata": meta | body.get("metadata", {})}
        await self._client.patch(PERSISTENTVOLUMES, volume.metadata.name, body)

    async def _patch_claim(self, claim: PersistentVolumeClaim, body: dict[str, Any], subresource: str = "") -> None:
        meta = claim.metadata
        body = body | {"metadata": {"uid": meta.uid} | body.get("metadata", {})}
        await self._client.patch(PERSISTENTVOLUMECLAIMS, meta.name, body, meta.namespace, subresource=subresource)

    def _report(self, claim: PersistentVolumeClaim, severity: Any, reason: str, message: str) -> None:
        self._recorder.event(reference("v1", "PersistentVolumeClaim", claim.metadata), severity, reason, message)


def _node_selector(volume: PersistentVolume) -> Any:
    affinity = volume.spec.node_affinity
    return affinity.required if affinity is not None else None
