"""The loop that sets the phases of volumes, and removes released volumes with their folders.

Guarantee: a folder is removed only after the claim is deleted and the volume is Released with the policy Delete.
"""

import asyncio
from pathlib import Path

from podwire.embedded.storage import binding, folders
from podwire.errors import ConfigError, NotFound
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES
from podwire.model.storage import PersistentVolume
from podwire.runtime.supervise import Supervisor


class VolumeReclaimer:
    """Volumes of a cluster; ``folder`` holds those of the class ``standard``."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self._client = environment.client
        self._folder = folder
        self._recorder = environment.recorder("persistentvolume-controller")
        self._claims = environment.of(PERSISTENTVOLUMECLAIMS)
        self._volumes = environment.of(PERSISTENTVOLUMES)
        self._loop = environment.loop("persistentvolume", self._reconcile)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor)

    def touch(self, name: str) -> None:
        """Queues a volume that changed, or whose claim changed."""
        self._loop.touch(name)

    async def _reconcile(self, name: str) -> None:
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
