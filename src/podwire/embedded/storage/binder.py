"""The loop that binds claims to volumes and provisions volumes; ``storage.binding`` plans its steps.

Guarantees: 1. two claims never get the same volume, since a write to a volume names the version that was read; 2. an
interrupted step is repeated; 3. the Event of a waiting claim is written once per reason.

Cost: four writes to bind a claim, one more to make its volume.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from podwire.cluster.names import FOLDER_PROVISIONER
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
from podwire.embedded.storage.reclaim import VolumeReclaimer
from podwire.embedded.storage.writes import StorageWriter
from podwire.errors import AlreadyExists
from podwire.kube.controller import Environment
from podwire.kube.resources import NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from podwire.model.meta import key_of
from podwire.model.storage import CLASS_BETA, PersistentVolume, PersistentVolumeClaim, StorageClass, default_class
from podwire.runtime.supervise import Supervisor

_RETRY_S = 5.0
"""The delay before a folder that could not be created is tried again."""


class VolumeBinder:
    """Binds claims to volumes; ``folder`` holds the volumes of the class ``standard``."""

    def __init__(self, environment: Environment, folder: str) -> None:
        self._client = environment.client
        self._folder = Path(folder)
        self._writer = StorageWriter(environment)
        self._reclaimer = VolumeReclaimer(environment, self._folder)
        self._claims = environment.of(PERSISTENTVOLUMECLAIMS)
        self._volumes = environment.of(PERSISTENTVOLUMES)
        self._classes = environment.of(STORAGECLASSES)
        self._nodes = environment.of(NODES)
        self._reported: dict[str, str] = {}
        self._claim_loop = environment.loop("persistentvolumeclaim", self._reconcile_claim)
        self._claims.subscribe(self._claim_changed)
        self._volumes.subscribe(self._volume_changed)
        self._classes.subscribe(lambda _key, _old, _new: self._touch_pending())

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loops of claims and volumes."""
        self._claim_loop.start(supervisor)
        self._reclaimer.start(supervisor)

    def _claim_changed(self, key: str, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        self._claim_loop.touch(key)
        for claim in (old, new):
            if claim is not None and claim.spec.volume_name:
                self._reclaimer.touch(claim.spec.volume_name)
        if new is None and old is not None:
            self._reported.pop(old.metadata.uid, None)
            self._reclaimer.touch(binding.volume_name(old))

    def _volume_changed(self, key: str, _old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        self._reclaimer.touch(key)
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
        if (
            claim.spec.storage_class_name is None
            and not claim.spec.volume_name
            and await self._set_default_class(claim)
        ):
            return
        step = binding.plan_claim(claim, self._volumes.objects, self._classes.objects, allowed=self._reachable(claim))
        if step is not None:
            await self._take_step(claim, step)

    async def _set_default_class(self, claim: PersistentVolumeClaim) -> bool:
        """Sets the default class in a claim without a class; the class may be newer than the claim."""
        storage_class = default_class(list(self._classes.objects.values()))
        if storage_class is None or CLASS_BETA in claim.metadata.annotations:
            return False
        await self._writer.patch_claim(claim, {"spec": {"storageClassName": storage_class.metadata.name}})
        return True

    def _reachable(self, claim: PersistentVolumeClaim) -> Iterable[PersistentVolume] | None:
        node = self._nodes.get(claim.metadata.annotations.get(binding.SELECTED_NODE, ""))
        if node is None:
            return None
        return [volume for volume in self._volumes.objects.values() if node_selected(volume.node_selector, node)]

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
                    await self._writer.patch_claim(claim, {"status": {"phase": "Lost"}}, "status")
                    self._writer.report(claim, "Warning", "ClaimLost", message)
            case Expand(volume):
                await self._expand(claim, volume)

    async def _claim_volume(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        body: dict[str, Any] = {"spec": {"claimRef": msgspec.to_builtins(binding.claim_reference(claim))}}
        if volume.spec.claim_ref is None:
            body["metadata"] = {"annotations": {binding.BOUND_BY_CONTROLLER: "yes"}}
        await self._writer.patch_volume(volume, body)

    async def _complete(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        annotations = {binding.BIND_COMPLETED: "yes"}
        if not claim.spec.volume_name:
            annotations[binding.BOUND_BY_CONTROLLER] = "yes"
        body = {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume.metadata.name}}
        await self._writer.patch_claim(claim, body)
        await self._writer.mark_bound(claim, volume)
        self._reclaimer.touch(volume.metadata.name)

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> None:
        if self._volumes.get(binding.volume_name(claim)) is not None:
            return  # The volume is another claim's, or is being deleted: its next event queues the claim again.
        provisioner = claim.metadata.annotations.get(binding.STORAGE_PROVISIONER)
        if provisioner != FOLDER_PROVISIONER:
            metadata = {"annotations": {binding.STORAGE_PROVISIONER: FOLDER_PROVISIONER}}
            await self._writer.patch_claim(claim, {"metadata": metadata})
        volume = binding.provisioned(claim, storage_class, str(self._folder))
        try:
            await asyncio.to_thread(folders.make, volume)
        except OSError as failure:
            self._writer.report(
                claim, "Warning", "ProvisioningFailed", f"cannot make the folder of the volume: {failure}"
            )
            self._claim_loop.queue.add_after(key_of(claim.metadata), _RETRY_S)
            return
        body = {"apiVersion": "v1", "kind": "PersistentVolume"} | msgspec.to_builtins(volume)
        try:
            await self._client.create(PERSISTENTVOLUMES, body)
        except AlreadyExists:
            return
        name = volume.metadata.name
        self._writer.report(claim, "Normal", "ProvisioningSucceeded", f"Successfully provisioned volume {name}")

    async def _wait(self, claim: PersistentVolumeClaim, step: WaitForVolume) -> None:
        if step.provisioner and claim.metadata.annotations.get(binding.STORAGE_PROVISIONER) != step.provisioner:
            metadata = {"annotations": {binding.STORAGE_PROVISIONER: step.provisioner}}
            await self._writer.patch_claim(claim, {"metadata": metadata})
        if claim.status.phase != "Pending":
            await self._writer.patch_claim(claim, {"status": {"phase": "Pending"}}, "status")
        if self._reported.get(claim.metadata.uid) != step.message:
            self._reported[claim.metadata.uid] = step.message
            self._writer.report(claim, step.severity, step.reason, step.message)

    async def _expand(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        if not binding.is_folder(volume):
            return
        size = claim.spec.resources.requests["storage"]
        if binding.storage_milli(volume.spec.capacity) < binding.storage_milli({"storage": size}):
            await self._writer.patch_volume(volume, {"spec": {"capacity": {"storage": size}}})
            return  # The volume's event queues the claim again, which then gets the volume's size.
        await self._writer.mark_bound(claim, volume)
        self._reclaimer.touch(volume.metadata.name)
