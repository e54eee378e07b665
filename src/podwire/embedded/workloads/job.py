"""Jobs: the loop that carries out ``jobplan``, and the deletion of Jobs whose time to live has passed."""

from collections.abc import Callable

from podwire.embedded.workloads import jobplan
from podwire.embedded.workloads.jobpolicy import INDEX, NO_INDEX
from podwire.embedded.workloads.podwriter import OwnerPods, PodWriter
from podwire.embedded.workloads.replicaset import claimants, orphans_of
from podwire.embedded.workloads.statuswriter import write_status
from podwire.embedded.workloads.template import Json, PodOwner, pod_of, with_label
from podwire.errors import NotFound
from podwire.kube.controller import Environment
from podwire.kube.resources import JOBS, PODS
from podwire.model.meta import Condition
from podwire.model.pod import Pod
from podwire.model.workload import Job, JobStatus, changed_status
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.02


def pod_body(job: Job, index: int) -> Json:
    """A pod of a Job; an index is set as annotation, label, environment variable and part of the host name."""
    meta = job.metadata
    template = job.spec.template
    labels = {
        "batch.kubernetes.io/controller-uid": meta.uid,
        "batch.kubernetes.io/job-name": meta.name,
        "controller-uid": meta.uid,
        "job-name": meta.name,
    }
    for key, value in labels.items():
        template = with_label(template, key, value)
    body = pod_of(template, PodOwner("batch/v1", "Job", meta))
    if index == NO_INDEX:
        return body
    pod_meta, spec = body["metadata"], body["spec"]
    pod_meta["labels"] = pod_meta["labels"] | {INDEX: str(index)}
    pod_meta["annotations"] = dict(pod_meta.get("annotations") or {}) | {INDEX: str(index)}
    pod_meta["generateName"] = f"{meta.name}-{index}-"
    spec.setdefault("hostname", f"{meta.name}-{index}")
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_with_index(container, index) for container in spec[field]]
    return body


def _with_index(container: Json, index: int) -> Json:
    variables = [variable for variable in container.get("env") or [] if variable.get("name") != "JOB_COMPLETION_INDEX"]
    return container | {"env": [*variables, {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]}


def _matches(job: Job) -> Callable[[Pod], bool]:
    selector = job.spec.selector
    return lambda pod: selector is not None and selector.matches(pod.metadata.labels)


class JobController:
    """Runs Jobs to their end."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._client = environment.client
        self._jobs = environment.of(JOBS)
        self._pods = environment.pods_by_owner()
        self._orphans = orphans_of(environment)
        self._recorder = environment.recorder("job-controller")
        self._writer = PodWriter(environment, "job-controller")
        self._loop = environment.loop("job", self._reconcile, interval_s=_INTERVAL_S)
        self._jobs.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(PODS).subscribe(self._pod_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        for key in claimants("Job", self._jobs.objects, _matches, old, new):
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        job = self._jobs.get(key)
        if job is None or job.metadata.deletion_timestamp is not None:
            return
        uid, now = job.metadata.uid, self._environment.clock.now()
        if not self._writer.own.caught_up(uid):
            self._loop.queue.add_after(key, 1.0)
            return
        left_s = jobplan.expires_in_s(job, now)
        if left_s == 0.0:
            await self._expire(job)
            return
        if left_s is not None:
            self._loop.queue.add_after(key, left_s)
        pods = OwnerPods(
            tuple(p for p in self._pods.of(uid).values() if not self._writer.own.is_deleted(p.metadata.uid)),
            tuple(self._orphans.of(job.metadata.namespace).values()),
        )
        owner = PodOwner("batch/v1", "Job", job.metadata)
        chosen = jobplan.plan(job, await self._writer.claim(owner, _matches(job), pods), now)
        failure = await self._writer.create_many(owner, [pod_body(job, index) for index in chosen.start])
        failure = await self._writer.delete_many(owner, chosen.delete) or failure
        await self._write_status(job, chosen.status)
        if failure is not None:
            raise failure
        if chosen.ended is not None:
            self._record_end(owner, chosen.ended)
        if chosen.again_s is not None:
            self._loop.queue.add_after(key, chosen.again_s)

    def _record_end(self, owner: PodOwner, ended: Condition) -> None:
        if ended.type == "Complete":
            self._recorder.event(owner.subject, "Normal", "Completed", "Job completed")
        else:
            self._recorder.event(owner.subject, "Warning", ended.reason, ended.message)

    async def _expire(self, job: Job) -> None:
        meta = job.metadata
        try:
            await self._client.delete(JOBS, meta.name, meta.namespace, propagation="Background", uid=meta.uid)
        except NotFound:
            return

    async def _write_status(self, job: Job, status: JobStatus) -> None:
        await write_status(self._client, JOBS, job.metadata, changed_status(job.status, status))
