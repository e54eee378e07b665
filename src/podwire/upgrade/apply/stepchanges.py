"""What a step changes in the API: the fields of its objects, and the strategy of its workload meanwhile. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podwire.flows.proof import ObjectDiff
from podwire.upgrade.apply import fields
from podwire.upgrade.apply.record import ObjectBefore
from podwire.upgrade.plan.values import PlannedChange, UpgradePlan, UpgradeStep

Json = dict[str, Any]
WORKLOADS = ("DaemonSet", "Deployment")
_STRATEGIES = {"DaemonSet": "updateStrategy", "Deployment": "strategy"}


def changes_of(step: UpgradeStep, plan: UpgradePlan) -> tuple[PlannedChange, ...]:
    """The changes of a step; the images of its workload are among them."""
    if not step.images or any(change.kind in WORKLOADS for change in step.changes):
        return step.changes
    component = next((entry for entry in plan.components if entry.name == step.component), None)
    if component is None or component.kind not in WORKLOADS:
        return step.changes
    spec: Json = {}
    for image in step.images:
        group = "initContainers" if image.init else "containers"
        spec.setdefault(group, []).append({"name": image.container, "image": str(image.after)})
    change = PlannedChange(
        api_version="apps/v1",
        kind=component.kind,
        namespace=component.namespace,
        name=component.workload,
        patch={"spec": {"template": {"spec": spec}}},
    )
    return (*step.changes, change)


def object_changes(plan: UpgradePlan) -> list[ObjectDiff]:
    """What the steps of a plan change, in words: diffs of texts, and images."""
    result = []
    for step in plan.steps:
        images = "".join(f"{image.container}: {image.before} -> {image.after}\n" for image in step.images)
        for change in changes_of(step, plan):
            text = change.diff or (images if change.kind in WORKLOADS else "")
            if text:
                result.append(ObjectDiff(step=step.id, object=change.title, text=text))
    return result


def is_by_node(step: UpgradeStep, change: PlannedChange | ObjectBefore) -> bool:
    """Whether the pods of a workload are replaced node by node."""
    return change.kind == "DaemonSet" and step.scope == "nodes"


def strategy(step: UpgradeStep, change: PlannedChange | ObjectBefore, live: Json) -> Json:
    """The strategy of a workload while the step runs.

    Node by node: the controller replaces no pod by itself. Otherwise a new pod is there before an old one ends, unless
    two pods of the workload cannot run on one node.
    """
    if is_by_node(step, change):
        return {"spec": {"updateStrategy": {"type": "OnDelete"}}}
    if change.kind != "Deployment":
        return {}
    rolling = {"maxSurge": 0, "maxUnavailable": 1} if _is_exclusive(live) else {"maxSurge": 1, "maxUnavailable": 0}
    return {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}


def _is_exclusive(workload: Json) -> bool:
    """Whether each node can run only one pod of a workload."""
    spec = workload["spec"]["template"]["spec"]
    ports = [port for container in spec.get("containers") or () for port in container.get("ports") or ()]
    anti = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return bool(anti) or any(port.get("hostPort") for port in ports) or bool(spec.get("hostNetwork") and ports)


def strategy_before(before: ObjectBefore) -> Json:
    """The strategy of a workload from before the step."""
    key = _STRATEGIES.get(before.kind, "")
    value = (before.patch.get("spec") or {}).get(key)
    return {"spec": {key: value}} if value else {}


def before_of(change: PlannedChange, live: Json, meanwhile: Mapping[str, Any]) -> ObjectBefore:
    """The fields of an object that the step and its strategy change, with their values of now."""
    patch = fields.reverse(live, fields.merged(change.patch, meanwhile))
    return ObjectBefore(
        api_version=change.api_version, kind=change.kind, namespace=change.namespace, name=change.name, patch=patch
    )


def volume_of(workload: Json, configmap: PlannedChange) -> Json | None:
    """The name of the volume by which a workload reads a ConfigMap or its copy; None when it does not."""
    names = (configmap.name, copy_name(configmap))
    if workload["metadata"]["namespace"] != configmap.namespace:
        return None
    for volume in workload["spec"]["template"]["spec"].get("volumes") or ():
        if (volume.get("configMap") or {}).get("name") in names:
            return {"name": volume["name"]}
    return None


def with_volume(patch: Mapping[str, Any], volume: Mapping[str, Any], configmap: str) -> Json:
    """The patch of a workload that also reads another ConfigMap."""
    entry = {**volume, "configMap": {"name": configmap}}
    return dict(fields.merged(dict(patch), {"spec": {"template": {"spec": {"volumes": [entry]}}}}))


def copy_name(change: PlannedChange) -> str:
    """The name of the ConfigMap with the new content that new pods read while old pods run."""
    digest = hashlib.sha256(msgspec.json.encode(change.patch, order="sorted")).hexdigest()[:8]
    return f"{change.name}-{digest}"


def is_cni(workload: Json, conf_dir: str) -> bool:
    """Whether the pods of a DaemonSet write configurations of the runtime; podwire's agents look after their own."""
    if workload["metadata"]["name"].startswith("podwire-"):
        return False
    volumes: Sequence[Any] = workload["spec"]["template"]["spec"].get("volumes") or ()
    paths = {str((volume.get("hostPath") or {}).get("path", "")).rstrip("/") for volume in volumes}
    return conf_dir.rstrip("/") in paths


def answers_dns(workload: Json) -> bool:
    """Whether the pods of a workload declare the port of DNS."""
    containers = workload["spec"]["template"]["spec"].get("containers") or ()
    return any(port.get("containerPort") == 53 for item in containers for port in item.get("ports") or ())


def way_back(changes: Sequence[PlannedChange], before: Sequence[ObjectBefore]) -> list[ObjectBefore]:
    """The objects of a step in the order in which they are taken back.

    The last one first; but a ConfigMap of which pods read a copy has its old text before the first old pod starts.
    """
    exclusive = {change.title for change in changes if change.exclusive}
    reverse = before[::-1]
    first = [entry for entry in reverse if entry.title in exclusive]
    return [*first, *(entry for entry in reverse if entry.title not in exclusive)]


def canary_name(workload: str) -> str:
    """The name of the pod that tries a template."""
    return f"{workload}-canary"


def canary_pod(workload: Json, patch: Mapping[str, Any]) -> Json:
    """A pod of the new template that no Service and no controller selects."""
    template = fields.merged(workload["spec"]["template"], patch["spec"]["template"])
    meta = workload["metadata"]
    labels = {"app.kubernetes.io/name": "podwire-upgrade-canary"}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": canary_name(meta["name"]),
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": annotations,
        },
        "spec": template["spec"],
    }
