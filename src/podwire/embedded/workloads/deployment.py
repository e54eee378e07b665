"""Deployments: the loop that carries out the decisions of :mod:`podwire.embedded.workloads.rollout`.

Guarantees:

1. No step is planned before the informers show the writes of the previous step.
2. A Deployment makes at most one step in 20 ms.
3. An existing ReplicaSet of the current template is used again, so an undo creates no new ReplicaSet.

Cost: one write per ReplicaSet that changes size and one write for the status.
"""

from typing import Any

from podwire.embedded.workloads import deploymentstatus, rollout
from podwire.embedded.workloads.rollout import Sets
from podwire.embedded.workloads.statuswriter import write_status
from podwire.embedded.workloads.template import HASH_LABEL, PodOwner, equal_templates, template_hash, with_label
from podwire.errors import AlreadyExists, NotFound
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import DEPLOYMENTS, PODS, REPLICASETS
from podwire.model.meta import Condition, controller_of
from podwire.model.pod import Pod
from podwire.model.workload import Deployment, ReplicaSet, changed_status
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.02
Json = dict[str, Any]


class DeploymentController:
    """Rolls out Deployments."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._client = environment.client
        self._recorder = environment.recorder("deployment-controller")
        self._deployments = environment.of(DEPLOYMENTS)
        self._own = OwnWrites(environment.of(REPLICASETS))
        self._owned: Index[ReplicaSet] = Index(environment.of(REPLICASETS), _set_owner)
        self._pods = environment.pods_by_owner()
        self._loop = environment.loop("deployment", self._reconcile, interval_s=_INTERVAL_S)
        self._deployments.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(REPLICASETS).subscribe(self._set_changed)
        environment.of(PODS).subscribe(self._pod_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the reconcile loop."""
        self._loop.start(supervisor)

    def _set_changed(self, _key: str, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        for item in (old, new):
            owner = controller_of(item.metadata) if item is not None else None
            if item is not None and owner is not None and owner.kind == "Deployment":
                self._loop.touch(f"{item.metadata.namespace}/{owner.name}")
        for key, deployment in self._deployments.objects.items() if new is not None else ():
            if new is not None and self._adoptable(deployment, new):
                self._loop.touch(key)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        # Only the strategy Recreate waits for the end of pods; all other decisions use the ReplicaSets' numbers.
        if new is None and old is not None:
            owner = controller_of(old.metadata)
            item = self._environment.of(REPLICASETS).get(f"{old.metadata.namespace}/{owner.name}") if owner else None
            if item is not None:
                self._set_changed("", item, item)

    def _adoptable(self, deployment: Deployment, item: ReplicaSet) -> bool:
        selector = deployment.spec.selector
        return (
            selector is not None
            and deployment.metadata.namespace == item.metadata.namespace
            and deployment.metadata.deletion_timestamp is None
            and item.metadata.deletion_timestamp is None
            and controller_of(item.metadata) is None
            and selector.matches(item.metadata.labels)
        )

    async def _reconcile(self, key: str) -> None:
        deployment = self._deployments.get(key)
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            return
        uid = deployment.metadata.uid
        await self._adopt(deployment)
        if not self._own.caught_up(uid):
            self._loop.queue.add_after(key, 1.0)
            return
        sets = rollout.partition(deployment, tuple(self._owned.of(uid).values()))
        event = await self._step(deployment, sets)
        if self._own.caught_up(uid):
            await self._write_status(deployment, sets, event)
            for item in rollout.obsolete(deployment.spec, sets):
                await self._client.delete(REPLICASETS, item.metadata.name, item.metadata.namespace)
        elif event is not None:
            await self._write_status(deployment, sets, event)
        delay_s = deploymentstatus.deadline_in_s(deployment, self._environment.clock.now())
        if delay_s is not None:
            self._loop.queue.add_after(key, delay_s)

    async def _adopt(self, deployment: Deployment) -> None:
        owner = PodOwner("apps/v1", "Deployment", deployment.metadata)
        prefix = f"{deployment.metadata.namespace}/"
        for key, item in list(self._environment.of(REPLICASETS).objects.items()):
            if key.startswith(prefix) and self._adoptable(deployment, item):
                patch = {"metadata": {"uid": item.metadata.uid, "ownerReferences": [owner.reference]}}
                meta = item.metadata
                written = await self._client.patch(REPLICASETS, meta.name, patch, meta.namespace)
                self._own.wrote(deployment.metadata.uid, written)

    async def _step(self, deployment: Deployment, sets: Sets) -> Condition | None:
        """Takes the next step and returns its Progressing condition; None when the step has none."""
        spec = deployment.spec
        if spec.paused:
            await self._apply(deployment, sets, rollout.scale(spec, sets))
            return deploymentstatus.progressing("DeploymentPaused", "Deployment is paused", "Unknown")
        if rollout.resized(spec, sets):
            # The annotation is written to every active ReplicaSet, so the next step continues the rollout.
            await self._apply(deployment, sets, rollout.scale(spec, sets), every=True)
            return None
        old_pods = sum(len(self._pods.of(item.metadata.uid)) for item in sets.old)
        if sets.new is None:
            return await self._begin(deployment, sets, old_pods)
        event = await self._annotate(deployment, sets, sets.new)
        if spec.strategy.type == "Recreate":
            scaling = rollout.recreate(spec, sets, old_pods=old_pods)
        else:
            scaling = rollout.rolling(spec, sets)
        await self._apply(deployment, sets, scaling)
        return event

    async def _begin(self, deployment: Deployment, sets: Sets, old_pods: int) -> Condition | None:
        spec = deployment.spec
        if spec.strategy.type == "Recreate" and (rollout.desired_replicas(sets.old) or old_pods):
            await self._apply(deployment, sets, rollout.recreate(spec, sets, old_pods=old_pods))
            return None
        return await self._create(deployment, sets)

    async def _create(self, deployment: Deployment, sets: Sets) -> Condition:
        meta, spec = deployment.metadata, deployment.spec
        digest = template_hash(spec.template, deployment.status.collision_count)
        size = rollout.first_size(spec, sets.old)
        name = f"{meta.name}-{digest}"
        template = with_label(spec.template, HASH_LABEL, digest)
        selector = dict((spec.selector.match_labels if spec.selector else None) or {}) | {HASH_LABEL: digest}
        expressions = [
            {"key": term.key, "operator": term.operator, "values": list(term.values)}
            for term in (spec.selector.match_expressions if spec.selector else ())
        ]
        annotations = rollout.set_annotations(deployment, sets)
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": template["metadata"]["labels"],
                "annotations": annotations,
                "ownerReferences": [PodOwner("apps/v1", "Deployment", meta).reference],
            },
            "spec": {
                "replicas": size,
                "minReadySeconds": spec.min_ready_seconds,
                "selector": {"matchLabels": selector} | ({"matchExpressions": expressions} if expressions else {}),
                "template": template,
            },
        }
        try:
            written = await self._client.create(REPLICASETS, body, meta.namespace)
        except AlreadyExists:
            return await self._collided(deployment, name)
        self._own.wrote(meta.uid, written)
        self._scaled(deployment, name, 0, size)
        await self._annotate_deployment(deployment, annotations[rollout.REVISION])
        return deploymentstatus.progressing("NewReplicaSetCreated", f'Created new replica set "{name}"')

    async def _collided(self, deployment: Deployment, name: str) -> Condition:
        """Handles a name conflict: waits if the ReplicaSet is its own with an equal template, else changes the hash."""
        meta = deployment.metadata
        replicaset = await self._client.get(REPLICASETS, name, meta.namespace, decode_as=ReplicaSet)
        owner = controller_of(replicaset.metadata)
        owned = owner is not None and owner.uid == meta.uid
        if owned and equal_templates(replicaset.spec.template, deployment.spec.template):
            self._own.wrote(meta.uid, {"metadata": {"resourceVersion": replicaset.metadata.resource_version}})
        else:
            count = (deployment.status.collision_count or 0) + 1
            patch = {"status": {"collisionCount": count}}
            await self._client.patch(DEPLOYMENTS, meta.name, patch, meta.namespace, subresource="status")
        return deploymentstatus.progressing("FoundNewReplicaSet", f'Found new replica set "{name}"')

    async def _annotate(self, deployment: Deployment, sets: Sets, new: ReplicaSet) -> Condition | None:
        annotations = rollout.set_annotations(deployment, sets)
        if annotations != new.metadata.annotations or new.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
            patch = {
                "metadata": {"annotations": annotations},
                "spec": {"minReadySeconds": deployment.spec.min_ready_seconds},
            }
            written = await self._client.patch(REPLICASETS, new.metadata.name, patch, new.metadata.namespace)
            self._own.wrote(deployment.metadata.uid, written)
        await self._annotate_deployment(deployment, annotations[rollout.REVISION])
        if any(c.type == "Progressing" for c in deployment.status.conditions):
            return None
        return deploymentstatus.progressing("FoundNewReplicaSet", f'Found new replica set "{new.metadata.name}"')

    async def _annotate_deployment(self, deployment: Deployment, revision: str) -> None:
        meta = deployment.metadata
        if meta.annotations.get(rollout.REVISION) != revision:
            patch = {"metadata": {"annotations": {rollout.REVISION: revision}}}
            await self._client.patch(DEPLOYMENTS, meta.name, patch, meta.namespace)

    async def _apply(
        self, deployment: Deployment, sets: Sets, scaling: rollout.Scaling, *, every: bool = False
    ) -> None:
        spec = deployment.spec
        numbers = {rollout.DESIRED: str(spec.replicas), rollout.MAXIMUM: str(rollout.maximum(spec))}
        for item in sets.all:
            if item.metadata.name not in scaling and not (every and item.spec.replicas):
                continue
            meta = item.metadata
            size = scaling.get(meta.name, item.spec.replicas)
            patch = {"metadata": {"annotations": numbers}, "spec": {"replicas": size}}
            try:
                written = await self._client.patch(REPLICASETS, meta.name, patch, meta.namespace)
            except NotFound:
                continue
            self._own.wrote(deployment.metadata.uid, written)
            self._scaled(deployment, meta.name, item.spec.replicas, size)

    def _scaled(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        if before == after:
            return
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {name} from {before} to {after}"
        subject = PodOwner("apps/v1", "Deployment", deployment.metadata).subject
        self._recorder.event(subject, "Normal", "ScalingReplicaSet", message)

    async def _write_status(self, deployment: Deployment, sets: Sets, event: Condition | None) -> None:
        status = deploymentstatus.plan(deployment, sets, self._environment.clock.now(), event)
        await write_status(self._client, DEPLOYMENTS, deployment.metadata, changed_status(deployment.status, status))


def _set_owner(item: ReplicaSet) -> tuple[str, ...]:
    owner = controller_of(item.metadata)
    return (owner.uid,) if owner is not None else ()
