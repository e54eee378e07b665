"""The status of a Deployment, with the conditions that ``kubectl rollout status`` and ``kubectl wait`` read. Pure.

The condition Progressing is True during a rollout and after a complete rollout. It becomes False when the numbers have
not changed for ``progressDeadlineSeconds``. Source: ``k8s.io/kubernetes/pkg/controller/deployment/progress.go``.
"""

import datetime

import msgspec

from podwire.embedded.workloads.podstate import seconds_since
from podwire.embedded.workloads.rollout import Sets, limits
from podwire.model.meta import Condition
from podwire.model.workload import Deployment, DeploymentStatus
from podwire.runtime.clock import rfc3339

_NO_DEADLINE = 2**31 - 1


def plan(deployment: Deployment, sets: Sets, now: datetime.datetime, event: Condition | None) -> DeploymentStatus:
    """The status to write; ``event`` is the Progressing condition of the step that was just made, if it has one."""
    counted = _numbers(deployment, sets)
    conditions = {c.type: c for c in deployment.status.conditions}
    _put(conditions, _availability(deployment, counted), now)
    failure = next((c for s in sets.all for c in s.status.conditions if c.type == "ReplicaFailure"), None)
    if failure is not None:
        _put(conditions, failure, now)
    else:
        conditions.pop("ReplicaFailure", None)
    progress = _progress(deployment, sets, counted, now) or event
    if progress is not None:
        _put(conditions, progress, now, moved=progress.reason == "ReplicaSetUpdated")
    return msgspec.structs.replace(counted, conditions=tuple(conditions.values()))


def complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Whether every pod has the new template and is available."""
    replicas = deployment.spec.replicas
    return (
        status.updated_replicas == status.replicas == status.available_replicas == replicas
        and status.observed_generation >= deployment.metadata.generation
    )


def deadline_in_s(deployment: Deployment, now: datetime.datetime) -> float | None:
    """Seconds until the rollout exceeds its progress deadline; None when it is complete, paused or has no deadline."""
    deadline = deployment.spec.progress_deadline_seconds
    progress = next((c for c in deployment.status.conditions if c.type == "Progressing"), None)
    if deadline is None or deadline >= _NO_DEADLINE or progress is None or deployment.spec.paused:
        return None
    if progress.reason in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded", "DeploymentPaused"):
        return None
    return max(0.0, deadline - seconds_since(progress.last_update_time, now)) + 0.5


def progressing(reason: str, message: str, status: str = "True") -> Condition:
    """A Progressing condition."""
    return Condition(type="Progressing", status=status, reason=reason, message=message)


def _numbers(deployment: Deployment, sets: Sets) -> DeploymentStatus:
    every = [item.status for item in sets.all]
    total = sum(status.replicas for status in every)
    available = sum(status.available_replicas for status in every)
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=total,
        updated_replicas=sets.new.status.replicas if sets.new is not None else 0,
        ready_replicas=sum(status.ready_replicas for status in every),
        available_replicas=available,
        unavailable_replicas=max(0, sum(item.spec.replicas for item in sets.all) - available),
        terminating_replicas=sum(status.terminating_replicas for status in every),
        collision_count=deployment.status.collision_count,
    )


def _availability(deployment: Deployment, status: DeploymentStatus) -> Condition:
    if status.available_replicas >= deployment.spec.replicas - limits(deployment.spec).unavailable:
        return Condition(
            type="Available",
            status="True",
            reason="MinimumReplicasAvailable",
            message="Deployment has minimum availability.",
        )
    return Condition(
        type="Available",
        status="False",
        reason="MinimumReplicasUnavailable",
        message="Deployment does not have minimum availability.",
    )


def _progress(deployment: Deployment, sets: Sets, status: DeploymentStatus, now: datetime.datetime) -> Condition | None:
    deadline = deployment.spec.progress_deadline_seconds
    if deadline is None or deadline >= _NO_DEADLINE or deployment.spec.paused:
        return None
    subject = f'ReplicaSet "{sets.new.metadata.name}"' if sets.new else f'Deployment "{deployment.metadata.name}"'
    before = next((c for c in deployment.status.conditions if c.type == "Progressing"), None)
    if complete(deployment, status):
        return progressing("NewReplicaSetAvailable", f"{subject} has successfully progressed.")
    if _moved(deployment.status, status):
        return progressing("ReplicaSetUpdated", f"{subject} is progressing.")
    if before is None or before.reason in ("NewReplicaSetAvailable", "DeploymentPaused"):
        return None
    if before.reason == "ProgressDeadlineExceeded" or seconds_since(before.last_update_time, now) > deadline:
        return progressing("ProgressDeadlineExceeded", f"{subject} has timed out progressing.", "False")
    return None


def _moved(old: DeploymentStatus, new: DeploymentStatus) -> bool:
    return (
        new.updated_replicas > old.updated_replicas
        or new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        or new.ready_replicas > old.ready_replicas
        or new.available_replicas > old.available_replicas
    )


def _put(conditions: dict[str, Condition], new: Condition, now: datetime.datetime, *, moved: bool = False) -> None:
    old = conditions.get(new.type)
    if old is not None and not moved and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return
    stamp = rfc3339(now)
    changed = old is None or old.status != new.status
    since = stamp if changed or old is None else old.last_transition_time
    conditions[new.type] = Condition(
        type=new.type,
        status=new.status,
        reason=new.reason,
        message=new.message,
        last_transition_time=since,
        last_update_time=stamp,
    )
