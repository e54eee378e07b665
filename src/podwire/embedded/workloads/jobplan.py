"""Decides how many pods of a Job to start, and when a Job has ended. Pure.

The numbers of succeeded and failed pods are counted from the existing pods, which are kept until the Job is deleted.
With ``restartPolicy: OnFailure`` restarts of containers count towards ``backoffLimit``. After a failure the next pod
starts after 10 s; the delay doubles up to 6 minutes. With ``backoffLimitPerIndex`` each index has its own delay. A pod
that is being deleted is replaced at once, or with ``podReplacementPolicy: Failed`` when it has ended.
:mod:`podwire.embedded.workloads.jobpolicy` evaluates failures and successes under the Job's policies. Source:
``k8s.io/kubernetes/pkg/controller/job``.
"""

import datetime
from collections.abc import Iterable, Sequence

import msgspec

from podwire.embedded.workloads.jobpolicy import (
    NO_INDEX,
    Failures,
    failure_of_indexes,
    index_of,
    judge,
    success_of_rules,
)
from podwire.embedded.workloads.podstate import parse_time, restarts, seconds_since, victims
from podwire.model.meta import Condition
from podwire.model.pod import Pod
from podwire.model.workload import Job, JobStatus
from podwire.runtime.clock import rfc3339

_FIRST_BACKOFF_S = 10.0
_LONGEST_BACKOFF_S = 360.0


class JobPlan(msgspec.Struct, frozen=True):
    """Indexes of pods to start (``NO_INDEX`` for a Job without indexes), pods to delete, and the status.

    ``again_s`` is the number of seconds until the next plan (None: on change), ``ended`` the final condition of a Job
    that ends now.
    """

    start: tuple[int, ...]
    delete: tuple[Pod, ...]
    status: JobStatus
    again_s: float | None = None
    ended: Condition | None = None


class _Tally(msgspec.Struct, frozen=True):
    alive: tuple[Pod, ...]
    going: tuple[Pod, ...]
    succeeded: tuple[Pod, ...]
    failures: Failures


def plan(job: Job, pods: Iterable[Pod], now: datetime.datetime) -> JobPlan:
    """The plan for a Job and all pods that it owns."""
    tally = _count(job, pods)
    condition = finished(job)
    if condition is not None:
        return JobPlan((), tally.alive, _status(job, tally, (), now))
    verdict = _verdict(job, tally, now)
    if verdict is not None:
        return JobPlan((), tally.alive, _ended(job, tally, verdict, now), ended=verdict)
    if job.spec.suspend:
        return JobPlan((), tally.alive, _status(job, tally, (), now, suspended=True))
    indexes, surplus = _balance(job, tally)
    start, wait_s = _after_backoff(job, tally, indexes, now)
    return JobPlan(start, surplus, _status(job, tally, start, now), _again_s(job, wait_s, now))


def finished(job: Job) -> Condition | None:
    """The condition Complete or Failed of a Job that has ended; None for other Jobs."""
    for condition in job.status.conditions:
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return condition
    return None


def expires_in_s(job: Job, now: datetime.datetime) -> float | None:
    """Seconds until a Job that has ended must be deleted; None: never."""
    condition, ttl = finished(job), job.spec.ttl_seconds_after_finished
    if condition is None or ttl is None:
        return None
    return max(0.0, ttl - seconds_since(condition.last_transition_time, now))


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text with ranges, such as ``0,2-5``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if b > a + 1 else (f"{a},{b}" if b > a else str(a)) for a, b in spans)


def _count(job: Job, pods: Iterable[Pod]) -> _Tally:
    alive: list[Pod] = []
    succeeded: list[Pod] = []
    failed: list[Pod] = []
    going: list[Pod] = []
    for pod in pods:
        if pod.status.phase == "Succeeded":
            succeeded.append(pod)
        elif pod.status.phase == "Failed":
            failed.append(pod)
        elif pod.metadata.deletion_timestamp is not None:
            going.append(pod)
        else:
            alive.append(pod)
    return _Tally(tuple(alive), tuple(going), tuple(succeeded), judge(job, failed))


def _done_indexes(job: Job, tally: _Tally) -> set[int]:
    return {index_of(pod) for pod in tally.succeeded} & set(range(job.spec.completions or 0))


def _indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def _successes(job: Job, tally: _Tally) -> int:
    return len(_done_indexes(job, tally)) if _indexed(job) else len(tally.succeeded)


def _verdict(job: Job, tally: _Tally, now: datetime.datetime) -> Condition | None:
    reason, message = _failure(job, tally, now)
    if reason:
        return _condition("Failed", reason, message, now)
    if _indexed(job) and (message := success_of_rules(job, _done_indexes(job, tally))):
        return _condition("Complete", "SuccessPolicy", message, now)
    completions = job.spec.completions
    if completions is None:
        done = bool(tally.succeeded) and not tally.alive
    else:
        done = _successes(job, tally) >= completions and not (tally.alive and not _indexed(job) and completions == 0)
    if done:
        message = "Reached expected number of succeeded pods"
        return _condition("Complete", "CompletionsReached", message, now)
    return None


def _failure(job: Job, tally: _Tally, now: datetime.datetime) -> tuple[str, str]:
    """Reason and message of a Job that fails now; empty texts for one that goes on."""
    if tally.failures.fatal:
        return "PodFailurePolicy", tally.failures.fatal
    policy = ((job.spec.template.get("spec") or {}).get("restartPolicy")) or "Never"
    retries = len(tally.failures.counted)
    if policy == "OnFailure":
        retries += sum(restarts(pod) for pod in tally.alive)
    if retries > job.spec.backoff_limit or (policy == "OnFailure" and retries >= job.spec.backoff_limit > 0):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if _past_deadline(job, now):
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    return failure_of_indexes(job, tally.failures.indexes, _successes(job, tally))


def _past_deadline(job: Job, now: datetime.datetime) -> bool:
    deadline, started = job.spec.active_deadline_seconds, job.status.start_time
    if deadline is None or not started or job.spec.suspend:
        return False
    return seconds_since(started, now) >= deadline


def _condition(kind: str, reason: str, message: str, now: datetime.datetime) -> Condition:
    stamp = rfc3339(now)
    return Condition(
        type=kind,
        status="True",
        reason=reason,
        message=message,
        last_transition_time=stamp,
        last_probe_time=stamp,
    )


def _balance(job: Job, tally: _Tally) -> tuple[tuple[int, ...], tuple[Pod, ...]]:
    """Indexes to start, and surplus pods to delete."""
    completions = job.spec.completions
    if completions is None:
        target = len(tally.alive) if tally.succeeded else job.spec.parallelism
    else:
        target = min(job.spec.parallelism, completions - _successes(job, tally) - len(tally.failures.indexes))
    surplus = len(tally.alive) - target
    if surplus > 0:
        return (), victims(tally.alive, surplus)
    waited_for = tally.going if job.spec.pod_replacement_policy == "Failed" else ()
    missing = max(0, -surplus - len(waited_for))
    if not _indexed(job) or completions is None:
        return (NO_INDEX,) * missing, ()
    busy = {index_of(pod) for pod in (*tally.alive, *waited_for)} | _done_indexes(job, tally) | tally.failures.indexes
    free = (index for index in range(completions) if index not in busy)
    return tuple(index for index, _ in zip(free, range(missing), strict=False)), ()


def _after_backoff(
    job: Job, tally: _Tally, indexes: tuple[int, ...], now: datetime.datetime
) -> tuple[tuple[int, ...], float]:
    """The indexes whose pods may start now, and the seconds until the next of the others may."""
    if job.spec.backoff_limit_per_index is None:
        wait_s = _backoff_s(tally.failures.counted, tally.succeeded, now) if indexes else 0.0
        return (() if wait_s > 0 else indexes), wait_s
    waits = {
        index: _backoff_s([pod for pod in tally.failures.counted if index_of(pod) == index], (), now)
        for index in indexes
    }
    blocked = [wait for wait in waits.values() if wait > 0]
    return tuple(index for index, wait in waits.items() if wait == 0), min(blocked, default=0.0)


def _backoff_s(failed: Iterable[Pod], succeeded: Iterable[Pod], now: datetime.datetime) -> float:
    """Seconds until the next pod may start, from the failures since the last success."""
    last_success = max((_ended_at(pod) for pod in succeeded), default=0.0)
    recent = [at for pod in failed if (at := _ended_at(pod)) > last_success]
    if not recent:
        return 0.0
    delay: float = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (len(recent) - 1))
    return max(0.0, max(recent) + delay - now.timestamp())


def _ended_at(pod: Pod) -> float:
    times = [
        parse_time((status.state.get("terminated") or {}).get("finishedAt")) for status in pod.status.container_statuses
    ]
    at = max((time for time in times if time is not None), default=parse_time(pod.metadata.creation_timestamp))
    return at.timestamp() if at is not None else 0.0


def _again_s(job: Job, wait_s: float, now: datetime.datetime) -> float | None:
    times = [wait_s] if wait_s > 0 else []
    if job.spec.active_deadline_seconds is not None:
        remaining_s = job.spec.active_deadline_seconds - seconds_since(job.status.start_time, now)
        times.append(max(0.1, remaining_s + 0.05))
    return min(times, default=None)


def _status(
    job: Job, tally: _Tally, start: Sequence[int], now: datetime.datetime, *, suspended: bool = False
) -> JobStatus:
    conditions = job.status.conditions
    started = job.status.start_time
    before = next((c for c in conditions if c.type == "Suspended"), None)
    if suspended != (before is not None and before.status == "True"):
        other_conditions = tuple(c for c in conditions if c.type != "Suspended")
        reason, message = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
        stamp = rfc3339(now)
        changed = Condition(
            type="Suspended",
            status="True" if suspended else "False",
            reason=reason,
            message=message,
            last_transition_time=stamp,
            last_probe_time=stamp,
        )
        conditions = (*other_conditions, changed)
        started = None
    return JobStatus(
        conditions=conditions,
        start_time=None if suspended else started or rfc3339(now),
        completion_time=job.status.completion_time,
        active=0 if suspended else len(tally.alive) + len(start),
        ready=sum(pod.ready for pod in tally.alive),
        succeeded=_successes(job, tally),
        failed=len(tally.failures.counted),
        terminating=len(tally.going),
        completed_indexes=ranges(_done_indexes(job, tally)) if _indexed(job) else "",
        failed_indexes=ranges(tally.failures.indexes) if job.spec.backoff_limit_per_index is not None else None,
    )


def _ended(job: Job, tally: _Tally, verdict: Condition, now: datetime.datetime) -> JobStatus:
    status = _status(job, _Tally((), (*tally.going, *tally.alive), tally.succeeded, tally.failures), (), now)
    success = verdict.type == "Complete"
    first = _condition("SuccessCriteriaMet" if success else "FailureTarget", verdict.reason, verdict.message, now)
    return JobStatus(
        conditions=(*status.conditions, first, verdict),
        start_time=status.start_time,
        completion_time=rfc3339(now) if success else None,
        active=0,
        ready=0,
        succeeded=status.succeeded,
        failed=status.failed + (0 if success else len(tally.alive)),
        terminating=status.terminating,
        completed_indexes=status.completed_indexes,
        failed_indexes=status.failed_indexes,
    )
