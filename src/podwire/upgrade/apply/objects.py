"""Reads and writes the objects of an upgrade in the API: workloads, ConfigMaps, pods, Nodes, and the record.

Writes are server-side applies of the field manager ``podwire-upgrade``; :mod:`podwire.upgrade.apply.fields` says why a
body has all fields of the manager. :meth:`UpgradeObjects.conflicts` asks the API what other managers would lose.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from podwire.errors import ApiError, ConfigError, NotFound
from podwire.kube.client import APPLY_PATCH, Client
from podwire.kube.configrecord import ConfigRecord
from podwire.kube.decode import decode_object
from podwire.kube.podruns import PodRuns, is_owned, is_ready
from podwire.kube.resources import (
    CONFIGMAPS,
    CONTROLLERREVISIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    PODS,
    SERVICES,
    Json,
    Resource,
)
from podwire.kube.serverside import ApplyRequest, apply_object
from podwire.upgrade.apply import fields, record
from podwire.upgrade.apply.record import StepRecord, UpgradeRecord
from podwire.upgrade.nodecommands import MANAGER, nodes_ready
from podwire.upgrade.plan.values import UpgradePlan

_RESOURCES: Mapping[str, Resource[Json]] = {
    "DaemonSet": DAEMONSETS.raw,
    "Deployment": DEPLOYMENTS.raw,
    "ConfigMap": CONFIGMAPS,
    "Service": SERVICES.raw,
}
_REVISION = "controller-revision-hash"


class ObjectName(Protocol):
    """What names an object: a change of a plan, or a record of one."""

    @property
    def api_version(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...


class FieldConflict(NamedTuple):
    """A field that another manager owns."""

    object: str
    field: str
    manager: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field} belongs to {self.manager}"


class UpgradeObjects:
    """The objects of one cluster; ``namespace`` has the record, the Lease and the pods of the command."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.runs = PodRuns(client, namespace)
        self._record = ConfigRecord(client, namespace, record.NAME)

    async def read_record(self) -> UpgradeRecord:
        """How far the upgrade is.

        Raises: ConfigError when the ConfigMap was changed by hand into something else.
        """
        return record.parse(await self._record.read())

    async def write_plan(self, plan: UpgradePlan) -> None:
        """Begins a new record in place of an old one, in one write."""
        old = dict.fromkeys(await self._record.read())
        await self._record.write({**old, **record.plan_entry(plan)})

    async def write_step(self, step: str, entry: StepRecord | None) -> None:
        """Writes the record of a step, or removes it."""
        await self._record.write(record.step_entry(step, entry))

    async def write_held(self, step: str, node: str, *, held: bool) -> None:
        """Writes whether a node's network configuration is held."""
        await self._record.write(record.held_entry(step, node, held=held))

    async def delete_record(self) -> None:
        """Deletes the record."""
        await self._record.delete()

    async def get(self, target: ObjectName) -> Json:
        """An object, with its kind.

        Raises: ConfigError when the cluster does not have it.
        """
        resource = resource_of(target)
        try:
            obj = await self.client.get(resource, target.name, target.namespace)
        except NotFound as failure:
            raise ConfigError(_title(target), "", "is not in the cluster any more; make a new plan") from failure
        return {"apiVersion": resource.api_version, "kind": resource.kind} | obj

    async def is_present(self, target: ObjectName) -> bool:
        """Whether the cluster has an object."""
        try:
            await self.client.get(resource_of(target), target.name, target.namespace)
        except NotFound:
            return False
        return True

    async def set_fields(self, target: ObjectName, patch: Mapping[str, Any]) -> None:
        """Sets fields of an object, also those of other managers; writes nothing when it has them already.

        Raises: ConfigError, ApiError.
        """
        live = await self.get(target)
        if not fields.holds(live, dict(patch)):
            await self._apply(target, live, patch, ApplyRequest(manager=MANAGER, force=True))

    async def conflicts(self, target: ObjectName, patch: Mapping[str, Any]) -> list[FieldConflict]:
        """The fields of other managers that a patch would change; asks the API, and changes nothing.

        Raises: ApiError when the API refuses the patch for another reason.
        """
        live = await self.get(target)
        try:
            await self._apply(target, live, patch, ApplyRequest(manager=MANAGER, dry=True))
        except ApiError as failure:
            if not (causes := failure.details.get("causes")):
                raise
            return [_conflict(_title(target), cause) for cause in causes]
        return []

    async def _apply(self, target: ObjectName, live: Json, patch: Mapping[str, Any], request: ApplyRequest) -> None:
        resource = resource_of(target)
        body = fields.merged(fields.owned(live, MANAGER), patch)
        meta = {**body.get("metadata", {}), "name": target.name, "namespace": target.namespace}
        typed = body | {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        await apply_object(self.client, resource, typed, request)

    async def put_configmap(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Makes a ConfigMap, or replaces its content."""
        meta = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": MANAGER}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(data)}
        await self.client.patch(CONFIGMAPS, name, body, namespace, patch_type=APPLY_PATCH)

    async def delete_configmap(self, namespace: str, name: str) -> None:
        """Deletes a ConfigMap; does nothing without it."""
        try:
            await self.client.delete(CONFIGMAPS, name, namespace)
        except NotFound:
            pass

    async def pods_of(self, workload: Json, node: str = "") -> list[Json]:
        """The pods of a DaemonSet, of one node or of all."""
        selector = f"spec.nodeName={node}" if node else ""
        page = await self.client.list(PODS.raw, workload["metadata"]["namespace"], field_selector=selector)
        return [pod for pod in page.items if is_owned(pod, workload)]

    async def revision(self, daemonset: Json) -> str:
        """The label of pods that are made from the template of now; empty until the controller has seen it."""
        meta = daemonset["metadata"]
        if (daemonset.get("status") or {}).get("observedGeneration", 0) < meta.get("generation", 0):
            return ""
        page = await self.client.list(CONTROLLERREVISIONS.raw, meta["namespace"])
        owned_revisions = [item for item in page.items if is_owned(item, daemonset)]
        newest = max(owned_revisions, key=lambda item: int(item["revision"]), default=None)
        return str((newest["metadata"].get("labels") or {}).get(_REVISION, "")) if newest is not None else ""

    async def delete_pod(self, pod: Json) -> None:
        """Ends a pod of a workload, with its own grace period."""
        meta = pod["metadata"]
        try:
            await self.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            pass

    async def nodes(self) -> dict[str, bool]:
        """Whether each Node is Ready, by name."""
        return await nodes_ready(self.client)

    async def server_versions(self) -> list[tuple[str, str]]:
        """The API servers with their versions: those that run as pods of kube-system, and the one that answers."""
        answer = decode_object((await self.client.raw("GET", "/version")).body, dict)
        versions = [("the API server", str(answer.get("gitVersion", "")))]
        page = await self.client.list(PODS.raw, "kube-system", label_selector="component=kube-apiserver")
        for pod in page.items:
            image = str(pod["spec"]["containers"][0]["image"])
            versions.append((f"pod {pod['metadata']['name']}", image.partition("@")[0].rpartition(":")[2]))
        return versions


def resource_of(target: ObjectName) -> Resource[Json]:
    """The resource of an object.

    Raises: ConfigError for a kind that an upgrade does not change.
    """
    if target.kind not in _RESOURCES:
        expected = ", ".join(_RESOURCES)
        raise ConfigError(_title(target), "kind", f"expected {expected}, got {target.kind!r}")
    return _RESOURCES[target.kind]


def _title(target: ObjectName) -> str:
    return f"{target.kind} {target.namespace}/{target.name}"


def _conflict(title: str, cause: Mapping[str, str]) -> FieldConflict:
    _, _, rest = cause.get("message", "").partition('conflict with "')
    return FieldConflict(title, cause.get("field", ""), rest.partition('"')[0])


def is_current(pod: Json, revision: str) -> bool:
    """Whether a pod is made from the template of a revision, and ready."""
    return (pod["metadata"].get("labels") or {}).get(_REVISION) == revision and is_ready(pod)
