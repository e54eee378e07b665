"""StatefulSets: the loop that carries out ``ordinals``, with stable names and claims.

A claim of a volume claim template is created once per pod and kept when the pod is deleted, unless the
``persistentVolumeClaimRetentionPolicy`` says otherwise. Cost: one write per pod and
one per claim.
"""

import copy
from collections.abc import Callable, Sequence

from podwire.embedded.workloads.claimretention import claim_owners
from podwire.embedded.workloads.ordinals import Revision, StatefulSetPlan, ordinal_of, plan
from podwire.embedded.workloads.podwriter import OwnerPods, PodWriter, expected
from podwire.embedded.workloads.replicaset import claimants, orphans_of
from podwire.embedded.workloads.revisions import HASH, Revisions, template_of
from podwire.embedded.workloads.statuswriter import write_status
from podwire.embedded.workloads.template import Json, PodOwner, pod_of, with_label
from podwire.errors import AlreadyExists
from podwire.kube.controller import Environment
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import PERSISTENTVOLUMECLAIMS, PODS, STATEFULSETS
from podwire.model.pod import Pod
from podwire.model.workload import StatefulSet, StatefulSetStatus, Template, changed_status
from podwire.runtime.supervise import Supervisor
from podwire.runtime.workqueue import in_parallel

_INTERVAL_S = 0.02


def pod_body(item: StatefulSet, template: Template, ordinal: int, digest: str) -> Json:
    """The pod of one ordinal: its name is its identity and its host name."""
    meta = item.metadata
    name = f"{meta.name}-{ordinal}"
    for key, value in (
        (HASH, digest),
        ("statefulset.kubernetes.io/pod-name", name),
        ("apps.kubernetes.io/pod-index", str(ordinal)),
    ):
        template = with_label(template, key, value)
    body = pod_of(template, PodOwner("apps/v1", "StatefulSet", meta), name)
    spec = body["spec"] | {"hostname": name}
    if item.spec.service_name:
        spec["subdomain"] = item.spec.service_name
    claims = {claim: f"{claim}-{name}" for claim in claim_names(item)}
    if claims:
        volumes = [volume for volume in spec.get("volumes") or [] if volume.get("name") not in claims]
        mounted = [{"name": c, "persistentVolumeClaim": {"claimName": full}} for c, full in claims.items()]
        spec["volumes"] = volumes + mounted
    return body | {"spec": spec}


def claim_names(item: StatefulSet) -> Sequence[str]:
    """The names of the volume claim templates."""
    return [str((claim.get("metadata") or {}).get("name", "")) for claim in item.spec.volume_claim_templates]


def claim_body(item: StatefulSet, claim: Json, pod: str) -> Json:
    """The claim of one pod."""
    meta = dict(claim.get("metadata") or {})
    labels = dict(meta.get("labels") or {})
    if item.spec.selector is not None:
        labels |= item.spec.selector.match_labels
    metadata = {
        "name": f"{meta.get('name', '')}-{pod}",
        "namespace": item.metadata.namespace,
        "labels": labels,
    }
    if meta.get("annotations"):
        metadata["annotations"] = meta["annotations"]
    if owners := claim_owners(item, ordinal_of(item.metadata.name, pod) or 0, None):
        metadata["ownerReferences"] = owners
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": copy.deepcopy(claim.get("spec") or {}),
    }


class StatefulSetController:
    """Creates, replaces and deletes the pods of StatefulSets."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._client = environment.client
        self._objects = environment.of(STATEFULSETS)
        self._own = OwnWrites(self._objects)
        self._pods = environment.pods_by_owner()
        self._orphans = orphans_of(environment)
        self._claims = environment.of(PERSISTENTVOLUMECLAIMS)
        self._revisions = Revisions(environment)
        self._writer = PodWriter(environment, "statefulset-controller")
        self._loop = environment.loop("statefulset", self._reconcile, interval_s=_INTERVAL_S)
        self._objects.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(PODS).subscribe(self._pod_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        for key in claimants("StatefulSet", self._objects.objects, _matches, old, new):
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        item = self._objects.get(key)
        if item is None:
            return
        owner = PodOwner("apps/v1", "StatefulSet", item.metadata)
        update = await self._revisions.ensure(owner, item.spec.template)
        uid = item.metadata.uid
        if update is None or not self._writer.own.caught_up(uid) or not self._own.caught_up(uid):
            self._loop.queue.add_after(key, 0.02 if update is None else 1.0)
            return
        by_name = {revision.metadata.name: revision for revision in self._revisions.of(uid)}
        current = by_name.get(item.status.current_revision, update)
        hashes = Revision(current.metadata.labels.get(HASH, ""), update.metadata.labels.get(HASH, ""))
        templates = {
            hashes.current: template_of(current),
            hashes.update: item.spec.template,
        }
        owned = tuple(self._pods.of(uid).values())
        pods = OwnerPods(owned, tuple(self._orphans.of(item.metadata.namespace).values()))
        claimed = await self._writer.claim(owner, _matches(item), pods)
        if any(self._writer.own.is_deleted(p.metadata.uid) and not p.metadata.deletion_timestamp for p in claimed):
            # The informer does not show the last deletion yet; when it does, its event touches the key again.
            self._loop.queue.add_after(key, 1.0)
            return
        chosen = plan(item, claimed, hashes, self._environment.clock.now())
        await self._own_claims(item, claimed)
        failure = await self._act(item, owner, chosen, templates)
        names = {hashes.current: current.metadata.name, hashes.update: update.metadata.name}
        await self._write_status(item, chosen.status, names)
        if failure is not None:
            raise failure
        used = {pod.metadata.labels.get(HASH, "") for pod in claimed} | {hashes.current, hashes.update}
        await self._revisions.prune(owner, used, item.spec.revision_history_limit)
        if chosen.again_s is not None:
            self._loop.queue.add_after(key, chosen.again_s)

    async def _act(
        self, item: StatefulSet, owner: PodOwner, chosen: StatefulSetPlan, templates: dict[str, Template]
    ) -> BaseException | None:
        names = [f"{item.metadata.name}-{ordinal}" for ordinal, _ in chosen.create]
        failure = expected(await in_parallel(self._claim(item, name) for name in names))
        bodies = [pod_body(item, templates[digest], ordinal, digest) for ordinal, digest in chosen.create]
        if failure is None:
            failure = await self._writer.create_many(owner, bodies)
        return await self._writer.delete_many(owner, chosen.delete) or failure

    async def _own_claims(self, item: StatefulSet, pods: Sequence[Pod]) -> None:
        """Sets the owners of claims, before pods are deleted."""
        for pod in pods if item.spec.volume_claim_templates else ():
            meta, ordinal = pod.metadata, ordinal_of(item.metadata.name, pod.metadata.name) or 0
            for name in claim_names(item):
                claim = self._claims.get(f"{meta.namespace}/{name}-{meta.name}")
                if claim is None:
                    continue
                owners = claim_owners(item, ordinal, meta, claim.metadata.owner_references)
                if owners is not None:
                    body = {"metadata": {"uid": claim.metadata.uid, "ownerReferences": owners}}
                    await self._client.patch(PERSISTENTVOLUMECLAIMS, claim.metadata.name, body, meta.namespace)

    async def _claim(self, item: StatefulSet, pod: str) -> None:
        for claim in item.spec.volume_claim_templates:
            body = claim_body(item, claim, pod)
            name, namespace = body["metadata"]["name"], item.metadata.namespace
            if self._claims.get(f"{namespace}/{name}") is not None:
                continue
            try:
                await self._client.create(PERSISTENTVOLUMECLAIMS, body, namespace)
            except AlreadyExists:
                continue

    async def _write_status(self, item: StatefulSet, status: StatefulSetStatus, names: dict[str, str]) -> None:
        patch = changed_status(item.status, status)
        for field in ("currentRevision", "updateRevision"):
            if field in patch:
                patch[field] = names.get(patch[field], patch[field])
        stored_names = {
            "currentRevision": item.status.current_revision,
            "updateRevision": item.status.update_revision,
        }
        patch = {key: value for key, value in patch.items() if stored_names.get(key) != value}
        if patch:
            written = await write_status(self._client, STATEFULSETS, item.metadata, patch)
            self._own.wrote(item.metadata.uid, written)


def _matches(item: StatefulSet) -> Callable[[Pod], bool]:
    """Whether a pod belongs to the StatefulSet: its labels match, and its name is the StatefulSet's with a number."""
    selector, name = item.spec.selector, item.metadata.name
    return lambda pod: (
        selector is not None
        and selector.matches(pod.metadata.labels)
        and ordinal_of(name, pod.metadata.name) is not None
    )
