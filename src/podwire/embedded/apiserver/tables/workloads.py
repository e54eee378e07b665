"""Rows of the workload kinds: Deployment, ReplicaSet, DaemonSet, StatefulSet, Job, CronJob and their like."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.tables.cells import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Column,
    Json,
    Printer,
    age,
    at,
    containers,
    count,
    flag,
    human_duration,
    is_true,
    labels,
    name,
    parse_time,
    plain,
    selector,
    since,
    wide,
)
from podwire.embedded.apiserver.tables.pods import PODS, replicas

_TEMPLATE = wide("Containers", "Images", "Selector")


def _number(label: str) -> Column:
    return Column(label, "integer")


def _deployment(obj: Json, now: datetime) -> list[Any]:
    return [
        name(obj),
        replicas(obj),
        count(obj, "status.updatedReplicas"),
        count(obj, "status.availableReplicas"),
        age(obj, now),
        *containers(obj),
        selector(at(obj, "spec.selector")),
    ]


def _replica_set(obj: Json, now: datetime) -> list[Any]:
    label_selector = at(obj, "spec.selector", {})
    return [
        name(obj),
        count(obj, "spec.replicas"),
        count(obj, "status.replicas"),
        count(obj, "status.readyReplicas"),
        age(obj, now),
        *containers(obj),
        labels(label_selector) if obj.get("kind") == "ReplicationController" else selector(label_selector),
    ]


def _daemon_set(obj: Json, now: datetime) -> list[Any]:
    return [
        name(obj),
        count(obj, "status.desiredNumberScheduled"),
        count(obj, "status.currentNumberScheduled"),
        count(obj, "status.numberReady"),
        count(obj, "status.updatedNumberScheduled"),
        count(obj, "status.numberAvailable"),
        labels(at(obj, "spec.template.spec.nodeSelector")),
        age(obj, now),
        *containers(obj),
        selector(at(obj, "spec.selector")),
    ]


def _stateful_set(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), replicas(obj), age(obj, now), *containers(obj)]


def _job_status(obj: Json) -> str:
    if is_true(obj, "Complete"):
        return "Complete"
    if is_true(obj, "Failed"):
        return "Failed"
    if at(obj, "metadata.deletionTimestamp"):
        return "Terminating"
    later = ("Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((kind for kind in later if is_true(obj, kind)), "Running")


def _completions(obj: Json) -> str:
    done, completions = count(obj, "status.succeeded"), at(obj, "spec.completions")
    if completions is not None:
        return f"{done}/{completions}"
    parallel = count(obj, "spec.parallelism")
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _duration(obj: Json, now: datetime) -> str:
    start = parse_time(at(obj, "status.startTime"))
    if start is None:
        return ""
    end = parse_time(at(obj, "status.completionTime")) or now
    return human_duration((end - start).total_seconds())


def _job(obj: Json, now: datetime) -> list[Any]:
    return [
        name(obj),
        _job_status(obj),
        _completions(obj),
        _duration(obj, now),
        age(obj, now),
        *containers(obj),
        selector(at(obj, "spec.selector")),
    ]


def _cron_job(obj: Json, now: datetime) -> list[Any]:
    last = at(obj, "status.lastScheduleTime")
    return [
        name(obj),
        at(obj, "spec.schedule", ""),
        at(obj, "spec.timeZone", NONE),
        flag(at(obj, "spec.suspend")),
        len(at(obj, "status.active", [])),
        since(last, now) if last else NONE,
        age(obj, now),
        *containers(obj, "spec.jobTemplate.spec.template.spec"),
        selector(at(obj, "spec.jobTemplate.spec.selector")),
    ]


def _pod_template(obj: Json, _: datetime) -> list[Any]:
    return [name(obj), *containers(obj, "template.spec"), labels(at(obj, "template.metadata.labels"))]


def _disruption_budget(obj: Json, now: datetime) -> list[Any]:
    return [
        name(obj),
        str(at(obj, "spec.minAvailable", "N/A")),
        str(at(obj, "spec.maxUnavailable", "N/A")),
        count(obj, "status.disruptionsAllowed"),
        age(obj, now),
    ]


def _revision(obj: Json, now: datetime) -> list[Any]:
    owners = at(obj, "metadata.ownerReferences", [])
    owner = next((item for item in owners if item.get("controller")), None)
    group = f".{owner['apiVersion'].split('/')[0]}" if owner and "/" in owner.get("apiVersion", "") else ""
    controller = f"{owner.get('kind', '').lower()}{group}/{owner.get('name', '')}" if owner else NONE
    return [name(obj), controller, count(obj, "revision"), age(obj, now)]


def _metric(spec: Json, status: Json) -> str:
    """``cpu: 10%/80%`` of one autoscaling metric."""
    source = spec.get("type", "")
    field = source[:1].lower() + source[1:]
    target, current = at(spec, f"{field}.target", {}), at(status, f"{field}.current", {})
    label = at(spec, f"{field}.name") or at(spec, f"{field}.metric.name") or field
    if "averageUtilization" in target:
        used = current.get("averageUtilization")
        text = f"{UNKNOWN if used is None else f'{used}%'}/{target['averageUtilization']}%"
    else:
        key = "averageValue" if "averageValue" in target else "value"
        text = f"{current.get(key, UNKNOWN)}/{target.get(key, '')}" + " (avg)" * (key == "averageValue")
    return f"{label}: {text}" if source in ("Resource", "ContainerResource") else text


def _autoscaler(obj: Json, now: datetime) -> list[Any]:
    specs, current_metrics = at(obj, "spec.metrics", []), at(obj, "status.currentMetrics", [])
    texts = [_metric(spec, current_metrics[i] if i < len(current_metrics) else {}) for i, spec in enumerate(specs)]
    if "targetCPUUtilizationPercentage" in at(obj, "spec", {}):
        used = at(obj, "status.currentCPUUtilizationPercentage")
        shown = UNKNOWN if used is None else f"{used}%"
        texts.append(f"cpu: {shown}/{at(obj, 'spec.targetCPUUtilizationPercentage')}%")
    targets = ", ".join(texts[:2]) + (f" + {len(texts) - 2} more..." if len(texts) > 2 else "")
    return [
        name(obj),
        f"{at(obj, 'spec.scaleTargetRef.kind', '')}/{at(obj, 'spec.scaleTargetRef.name', '')}",
        targets or NONE,
        str(at(obj, "spec.minReplicas", UNSET)),
        count(obj, "spec.maxReplicas"),
        count(obj, "status.currentReplicas"),
        age(obj, now),
    ]


_REPLICAS = Printer((NAME, _number("Desired"), _number("Current"), _number("Ready"), AGE, *_TEMPLATE), _replica_set)

PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Pod"): PODS,
    ("", "PodTemplate"): Printer(plain("Containers", "Images", "Pod Labels"), _pod_template),
    ("", "ReplicationController"): _REPLICAS,
    ("apps", "ReplicaSet"): _REPLICAS,
    ("apps", "Deployment"): Printer(
        (NAME, Column("Ready"), _number("Up-to-date"), _number("Available"), AGE, *_TEMPLATE), _deployment
    ),
    ("apps", "DaemonSet"): Printer(
        (
            NAME,
            *map(_number, ("Desired", "Current", "Ready", "Up-to-date", "Available")),
            Column("Node Selector"),
            AGE,
            *_TEMPLATE,
        ),
        _daemon_set,
    ),
    ("apps", "StatefulSet"): Printer((*plain("Ready"), AGE, *wide("Containers", "Images")), _stateful_set),
    ("apps", "ControllerRevision"): Printer((*plain("Controller"), _number("Revision"), AGE), _revision),
    ("batch", "Job"): Printer((*plain("Status", "Completions", "Duration"), AGE, *_TEMPLATE), _job),
    ("batch", "CronJob"): Printer(
        (
            *plain("Schedule", "Timezone"),
            Column("Suspend", "boolean"),
            _number("Active"),
            Column("Last Schedule"),
            AGE,
            *_TEMPLATE,
        ),
        _cron_job,
    ),
    ("policy", "PodDisruptionBudget"): Printer(
        (*plain("Min Available", "Max Unavailable"), _number("Allowed Disruptions"), AGE), _disruption_budget
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        (
            *plain("Reference", "Targets", "MinPods"),
            _number("MaxPods"),
            _number("Replicas"),
            AGE,
        ),
        _autoscaler,
    ),
}
"""By group and kind."""
