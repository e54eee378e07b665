"""Keeps claims that a pod uses, and volumes that a claim is bound to; creates the claims of ephemeral volumes.

A claim or volume that is deleted while in use keeps its finalizer, so its data stays until the last pod has ended. A
pod uses its claims from the moment it has a node until it has finished. Cost: one write per deleted claim or volume.
Source: ``k8s.io/kubernetes/pkg/controller/volume/{pvcprotection,pvprotection,ephemeral}``.
"""

from typing import Any

from podwire.embedded.storage.claims import claims_of, ephemeral_claims
from podwire.errors import AlreadyExists
from podwire.kube.client import JSON_PATCH
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.index import Index
from podwire.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS, Resource
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod
from podwire.model.storage import CLAIM_FINALIZER, VOLUME_FINALIZER, PersistentVolume, PersistentVolumeClaim
from podwire.runtime.supervise import Supervisor


class StorageProtection:
    """Removes the finalizers of unused claims and volumes; creates the claims of ephemeral volumes."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._recorder = environment.recorder("ephemeral-volume-controller")
        self._claims = environment.of(PERSISTENTVOLUMECLAIMS)
        self._volumes = environment.of(PERSISTENTVOLUMES)
        self._pods = environment.of(PODS)
        self._users = Index(self._pods, _claim_keys)
        self._claim_loop = environment.loop("pvc protection", self._reconcile_claim)
        self._volume_loop = environment.loop("pv protection", self._reconcile_volume)
        self._pod_loop = environment.loop("ephemeral volume", self._reconcile_pod)
        self._claims.subscribe(self._claim_changed)
        self._volumes.subscribe(self._volume_changed)
        self._pods.subscribe(self._pod_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loops."""
        for loop in (self._claim_loop, self._volume_loop, self._pod_loop):
            loop.start(supervisor, workers=1)

    def _claim_changed(self, key: str, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._claim_loop.touch(key)
        if new is None and old is not None:
            for pod in self._users.of(key).values():
                self._pod_loop.touch(f"{pod.metadata.namespace}/{pod.metadata.name}")

    def _volume_changed(self, key: str, _old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._volume_loop.touch(key)

    def _pod_changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not pod.spec.volumes:
            return
        for claim in _claim_keys(pod):
            known = self._claims.get(claim)
            if known is not None and known.metadata.deletion_timestamp is not None:
                self._claim_loop.touch(claim)
        if new is not None and old is None and ephemeral_claims(new):
            self._pod_loop.touch(key)

    async def _reconcile_claim(self, key: str) -> None:
        claim = self._claims.get(key)
        if claim is None or claim.metadata.deletion_timestamp is None:
            return
        if not any(pod.spec.node_name and not pod.finished for pod in self._users.of(key).values()):
            await self._release(PERSISTENTVOLUMECLAIMS, claim.metadata, CLAIM_FINALIZER)

    async def _reconcile_volume(self, name: str) -> None:
        volume = self._volumes.get(name)
        if volume is not None and volume.metadata.deletion_timestamp is not None and volume.status.phase != "Bound":
            await self._release(PERSISTENTVOLUMES, volume.metadata, VOLUME_FINALIZER)

    async def _release(self, resource: Resource[Any], meta: ObjectMeta, finalizer: str) -> None:
        if finalizer not in meta.finalizers:
            return
        path = f"/metadata/finalizers/{meta.finalizers.index(finalizer)}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": path, "value": finalizer},
            {"op": "remove", "path": path},
        ]
        await self._client.patch(resource, meta.name, patch, meta.namespace, patch_type=JSON_PATCH)

    async def _reconcile_pod(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None or pod.finished or pod.metadata.deletion_timestamp is not None:
            return
        for body in ephemeral_claims(pod):
            meta = body["metadata"]
            known = self._claims.get(f"{meta['namespace']}/{meta['name']}")
            if known is not None:
                self._check_owner(pod, known)
                continue
            try:
                await self._client.create(PERSISTENTVOLUMECLAIMS, body, meta["namespace"])
            except AlreadyExists:
                continue

    def _check_owner(self, pod: Pod, claim: PersistentVolumeClaim) -> None:
        owners = {owner.uid for owner in claim.metadata.owner_references if owner.controller}
        if pod.metadata.uid not in owners:
            message = f'PVC "{claim.metadata.name}" was not created for pod "{pod.metadata.name}" (pod is not owner)'
            self._recorder.event(reference("v1", "Pod", pod.metadata), "Warning", "WrongOwner", message)


def _claim_keys(pod: Pod) -> tuple[str, ...]:
    return tuple(f"{pod.metadata.namespace}/{name}" for name in claims_of(pod))
