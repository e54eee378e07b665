"""CronJobs: starts a Job at each scheduled time, and deletes old Jobs.

Guarantees:

1. At most one Job is created per scheduled time, because the time is part of the Job's name.
2. When the controller did not run at several scheduled times, only the last of them gets a Job, and only within
   ``startingDeadlineSeconds``.
3. No timer runs for a suspended CronJob.
"""

import datetime
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from podwire.embedded.workloads.cronschedule import Schedule, parse_schedule
from podwire.embedded.workloads.jobplan import finished
from podwire.embedded.workloads.podstate import parse_time
from podwire.embedded.workloads.statuswriter import write_status
from podwire.embedded.workloads.template import Json, PodOwner
from podwire.errors import AlreadyExists, ConfigError, NotFound
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.resources import CRONJOBS, JOBS
from podwire.model.meta import ObjectReference, controller_of
from podwire.model.workload import CronJob, CronJobStatus, Job, changed_status
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

_SPANS = tuple(datetime.timedelta(hours=hours) for hours in (1, 24, 24 * 32, 24 * 366 * 9))


class CronJobPlan(msgspec.Struct, frozen=True):
    """The scheduled time that gets a Job now (None: no Job), Jobs to delete, seconds until the next scheduled time."""

    start: datetime.datetime | None
    delete: tuple[Job, ...]
    again_s: float | None


def plan(item: CronJob, schedule: Schedule, jobs: Sequence[Job], now: datetime.datetime) -> CronJobPlan:
    """The plan for a CronJob and the Jobs that it owns; ``now`` is in the CronJob's time zone."""
    delete = list(_history(item, jobs))
    if item.spec.suspend:
        return CronJobPlan(None, tuple(delete), None)
    due, next_time = _due(item, schedule, now)
    again_s = (next_time - now).total_seconds() if next_time is not None else None
    active = [job for job in jobs if finished(job) is None]
    if due is not None and active:
        if item.spec.concurrency_policy == "Forbid":
            due = None
        elif item.spec.concurrency_policy == "Replace":
            delete += active
    return CronJobPlan(due, tuple(delete), again_s)


def _due(
    item: CronJob, schedule: Schedule, now: datetime.datetime
) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """The last scheduled time that was missed and may still get a Job, and the next scheduled time."""
    last = parse_time(item.status.last_schedule_time) or parse_time(item.metadata.creation_timestamp) or now
    if item.spec.starting_deadline_seconds is not None:
        last = max(last, now - datetime.timedelta(seconds=item.spec.starting_deadline_seconds))
    last = last.astimezone(now.tzinfo)
    for span in _SPANS:
        # The most recent span first: the number of steps does not grow with the time that the controller did not run.
        start = max(last, now - span)
        due: datetime.datetime | None = None
        at = schedule.next_after(start)
        while at is not None and at <= now:
            due, at = at, schedule.next_after(at)
        if due is not None or start == last:
            return due, at
    return None, schedule.next_after(now)


def _history(item: CronJob, jobs: Sequence[Job]) -> list[Job]:
    surplus: list[Job] = []
    limits = {
        "Complete": item.spec.successful_jobs_history_limit,
        "Failed": item.spec.failed_jobs_history_limit,
    }
    for kind, limit in limits.items():
        done = [job for job in jobs if (condition := finished(job)) is not None and condition.type == kind]
        done.sort(key=lambda job: (job.status.start_time or "", job.metadata.name))
        surplus += done[: max(0, len(done) - limit)]
    return surplus


def job_body(item: CronJob, at: datetime.datetime) -> Json:
    """The Job for one scheduled time."""
    meta = item.metadata
    template = item.spec.job_template
    metadata = template.get("metadata") or {}
    stamp = rfc3339(at.astimezone(datetime.UTC))
    annotations = dict(metadata.get("annotations") or {}) | {"batch.kubernetes.io/cronjob-scheduled-timestamp": stamp}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{meta.name}-{int(at.timestamp()) // 60}",
            "namespace": meta.namespace,
            "labels": dict(metadata.get("labels") or {}),
            "annotations": annotations,
            "ownerReferences": [PodOwner("batch/v1", "CronJob", meta).reference],
        },
        "spec": dict(template.get("spec") or {}),
    }


class CronJobController:
    """Starts the Jobs of CronJobs."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._objects = environment.of(CRONJOBS)
        self._recorder = environment.recorder("cronjob-controller")
        self._jobs: Index[Job] = Index(environment.of(JOBS), _owner)
        self._loop = environment.loop("cronjob", self._reconcile, interval_s=0.02)
        self._objects.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(JOBS).subscribe(self._job_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=2)

    def _job_changed(self, _key: str, old: Job | None, new: Job | None) -> None:
        for job in (old, new):
            owner = controller_of(job.metadata) if job is not None else None
            if job is not None and owner is not None and owner.kind == "CronJob":
                self._loop.touch(f"{job.metadata.namespace}/{owner.name}")

    async def _reconcile(self, key: str) -> None:
        item = self._objects.get(key)
        if item is None or item.metadata.deletion_timestamp is not None:
            return
        owner = PodOwner("batch/v1", "CronJob", item.metadata)
        try:
            schedule = parse_schedule(item.spec.schedule)
            zone = ZoneInfo(item.spec.time_zone) if item.spec.time_zone else datetime.UTC
        except (ConfigError, ZoneInfoNotFoundError, ValueError) as failure:
            self._recorder.event(owner.subject, "Warning", "UnparseableSchedule", f"{failure}")
            return
        now = self._clock.now()
        jobs = tuple(self._jobs.of(item.metadata.uid).values())
        chosen = plan(item, schedule, jobs, now.astimezone(zone))
        for job in chosen.delete:
            await self._delete(job)
        started = item.status.last_schedule_time
        if chosen.start is not None:
            started = rfc3339(chosen.start.astimezone(datetime.UTC))
            await self._start(owner, job_body(item, chosen.start))
        await self._write_status(item, jobs, started)
        if chosen.again_s is not None:
            self._loop.queue.add_after(key, chosen.again_s)

    async def _start(self, owner: PodOwner, body: Json) -> None:
        try:
            await self._client.create(JOBS, body, owner.meta.namespace)
        except AlreadyExists:
            return
        message = f"Created job {body['metadata']['name']}"
        self._recorder.event(owner.subject, "Normal", "SuccessfulCreate", message)

    async def _delete(self, job: Job) -> None:
        try:
            await self._client.delete(JOBS, job.metadata.name, job.metadata.namespace, propagation="Background")
        except NotFound:
            return

    async def _write_status(self, item: CronJob, jobs: Sequence[Job], started: str | None) -> None:
        ends = [job.status.completion_time for job in jobs if job.status.completion_time]
        active: list[dict[str, Any]] = [
            msgspec.to_builtins(
                ObjectReference(
                    api_version="batch/v1",
                    kind="Job",
                    namespace=job.metadata.namespace,
                    name=job.metadata.name,
                    uid=job.metadata.uid,
                )
            )
            for job in sorted(jobs, key=lambda job: job.metadata.name)
            if finished(job) is None
        ]
        status = CronJobStatus(
            active=tuple(active),
            last_schedule_time=started,
            last_successful_time=max([*ends, item.status.last_successful_time or ""]) or None,
        )
        await write_status(self._client, CRONJOBS, item.metadata, changed_status(item.status, status))


def _owner(job: Job) -> tuple[str, ...]:
    owner = controller_of(job.metadata)
    return (owner.uid,) if owner is not None else ()
