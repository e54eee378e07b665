"""Defaults of the workload kinds: ``pkg/apis/{apps,batch,autoscaling}/v1/defaults.go`` of Kubernetes."""

from podwire.embedded.apiserver.defaults.pods import Json, fill, fill_template, items_of, section

_QUARTER = "25%"
_UNLIMITED = 2**31 - 1


def fill_deployment(obj: Json) -> None:
    """Defaults of a Deployment."""
    spec = section(obj, "spec")
    fill(spec, {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    strategy = section(spec, "strategy")
    fill(strategy, {"type": "RollingUpdate"})
    if strategy["type"] == "RollingUpdate":
        fill(section(strategy, "rollingUpdate"), {"maxSurge": _QUARTER, "maxUnavailable": _QUARTER})
    fill_template(spec)


def fill_replica_set(obj: Json) -> None:
    """Defaults of a ReplicaSet."""
    spec = section(obj, "spec")
    fill(spec, {"replicas": 1})
    fill_template(spec)


def fill_replication_controller(obj: Json) -> None:
    """Defaults of a ReplicationController: selector and labels are its template's."""
    spec = section(obj, "spec")
    fill(spec, {"replicas": 1})
    fill_template(spec)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        fill(spec, {"selector": dict(labels)})
        fill(section(obj, "metadata"), {"labels": dict(labels)})


def fill_daemon_set(obj: Json) -> None:
    """Defaults of a DaemonSet."""
    spec = section(obj, "spec")
    fill(spec, {"revisionHistoryLimit": 10})
    strategy = section(spec, "updateStrategy")
    fill(strategy, {"type": "RollingUpdate"})
    if strategy["type"] == "RollingUpdate":
        fill(section(strategy, "rollingUpdate"), {"maxUnavailable": 1, "maxSurge": 0})
    fill_template(spec)


def fill_stateful_set(obj: Json) -> None:
    """Defaults of a StatefulSet and of its claim templates."""
    spec = section(obj, "spec")
    fill(spec, {"replicas": 1, "revisionHistoryLimit": 10, "podManagementPolicy": "OrderedReady"})
    fill(spec, {"serviceName": ""})
    strategy = section(spec, "updateStrategy")
    fill(strategy, {"type": "RollingUpdate"})
    if strategy["type"] == "RollingUpdate":
        fill(section(strategy, "rollingUpdate"), {"partition": 0})
    retention = section(spec, "persistentVolumeClaimRetentionPolicy")
    fill(retention, {"whenDeleted": "Retain", "whenScaled": "Retain"})
    for claim in items_of(spec, "volumeClaimTemplates"):
        fill(claim, {"kind": "PersistentVolumeClaim", "apiVersion": "v1"})
        fill(section(claim, "spec"), {"volumeMode": "Filesystem"})
        fill(section(claim, "status"), {"phase": "Pending"})
    fill_template(spec)


def fill_job(obj: Json) -> None:
    """Defaults of a Job; once it has a uid, also the generated selector and labels."""
    spec = section(obj, "spec")
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    limit = 6 if spec.get("backoffLimitPerIndex") is None else _UNLIMITED
    replacement = "TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed"
    fill(
        spec,
        {
            "parallelism": 1,
            "backoffLimit": limit,
            "completionMode": "NonIndexed",
            "suspend": False,
            "manualSelector": False,
            "podReplacementPolicy": replacement,
        },
    )
    fill_template(spec)
    meta = section(obj, "metadata")
    if meta.get("uid") and not spec["manualSelector"]:
        _select_by_uid(meta, spec)


def _select_by_uid(meta: Json, spec: Json) -> None:
    uid, name = meta["uid"], meta.get("name", "")
    labels = section(section(section(spec, "template"), "metadata"), "labels")
    own = {"controller-uid": uid, "job-name": name}
    fill(labels, own | {f"batch.kubernetes.io/{key}": value for key, value in own.items()})
    if spec.get("selector") is None:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not meta.get("labels"):
        meta["labels"] = dict(labels)


def fill_cron_job(obj: Json) -> None:
    """Defaults of a CronJob; those of its Jobs come when it makes them."""
    spec = section(obj, "spec")
    fill(
        spec,
        {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
        },
    )
    template = section(spec, "jobTemplate")
    section(template, "metadata")
    fill_template(section(template, "spec"))


def fill_pod_template(obj: Json) -> None:
    """Defaults of a PodTemplate."""
    fill_template(obj)


def _fill_behavior(behavior: Json) -> None:
    percent = {"type": "Percent", "value": 100, "periodSeconds": 15}
    up: Json = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max"}
    fill(section(behavior, "scaleUp"), {**up, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, percent]})
    fill(section(behavior, "scaleDown"), {"selectPolicy": "Max", "policies": [dict(percent)]})


def fill_autoscaler(obj: Json) -> None:
    """Defaults of a HorizontalPodAutoscaler: one replica at least, 80 % of the CPU."""
    spec = section(obj, "spec")
    fill(spec, {"minReplicas": 1})
    if spec.get("behavior") is not None:
        _fill_behavior(spec["behavior"])
    if obj.get("apiVersion") == "autoscaling/v1":
        return
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
