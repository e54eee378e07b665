"""Writes claims and volumes, and Events on claims."""

from typing import Any

from podwire.kube.controller import Environment
from podwire.kube.events import Severity, reference
from podwire.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES
from podwire.model.storage import PersistentVolume, PersistentVolumeClaim


class StorageWriter:
    """Writes to the API for the binder."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._recorder = environment.recorder("persistentvolume-controller")

    async def patch_volume(self, volume: PersistentVolume, body: dict[str, Any]) -> None:
        """Patches the version of the volume that was read.

        Raises: Conflict when it has changed since.
        """
        meta = {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version}
        body = body | {"metadata": meta | body.get("metadata", {})}
        await self._client.patch(PERSISTENTVOLUMES, volume.metadata.name, body)

    async def patch_claim(self, claim: PersistentVolumeClaim, body: dict[str, Any], subresource: str = "") -> None:
        """Patches any version of a claim, unless another claim has its name now."""
        meta = claim.metadata
        body = body | {"metadata": {"uid": meta.uid} | body.get("metadata", {})}
        await self._client.patch(PERSISTENTVOLUMECLAIMS, meta.name, body, meta.namespace, subresource=subresource)

    def report(self, claim: PersistentVolumeClaim, severity: Severity, reason: str, message: str) -> None:
        """Writes an Event on a claim."""
        self._recorder.event(reference("v1", "PersistentVolumeClaim", claim.metadata), severity, reason, message)

    async def mark_bound(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Sets the status of a claim that a volume is bound to."""
        status = {
            "phase": "Bound",
            "accessModes": list(volume.spec.access_modes),
            "capacity": dict(volume.spec.capacity),
        }
        await self.patch_claim(claim, {"status": status}, "status")
