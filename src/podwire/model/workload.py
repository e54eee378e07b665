"""Workloads (``apps/v1``, ``batch/v1``, ``policy/v1``).

Pod templates stay in their API form, since a workload passes on every field, also unknown ones.
"""

from typing import Any

import msgspec

from podwire.model.meta import Condition, Fact, ObjectMeta
from podwire.model.selector import LabelSelector

Template = dict[str, Any]
"""A pod template: ``metadata`` and ``spec`` as the API sends them."""


class RollingUpdate(Fact, frozen=True):
    """The limits of a rollout, relative to the desired number; a number or a percentage."""

    max_surge: int | str | None = None
    max_unavailable: int | str | None = None
    partition: int = 0


class Strategy(Fact, frozen=True):
    """RollingUpdate, Recreate or OnDelete."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate = RollingUpdate()


class DeploymentSpec(Fact, frozen=True):
    """The desired state of a Deployment."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: Template = {}
    strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    revision_history_limit: int = 10
    paused: bool = False
    progress_deadline_seconds: int | None = 600


class DeploymentStatus(Fact, frozen=True):
    """The observed state of a Deployment."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int = 0
    collision_count: int | None = None
    conditions: tuple[Condition, ...] = ()


class Deployment(Fact, frozen=True):
    """``apps/v1`` Deployment."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Fact, frozen=True):
    """The desired state of a ReplicaSet."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: Template = {}
    min_ready_seconds: int = 0


class ReplicaSetStatus(Fact, frozen=True):
    """The observed state of a ReplicaSet or ReplicationController."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class ReplicaSet(Fact, frozen=True):
    """``apps/v1`` ReplicaSet."""

    api_version: str = "apps/v1"
    kind: str = "ReplicaSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class ReplicationControllerSpec(Fact, frozen=True):
    """The desired state of a ReplicationController; its selector is a plain map."""

    replicas: int = 1
    selector: dict[str, str] = {}
    template: Template = {}
    min_ready_seconds: int = 0


class ReplicationController(Fact, frozen=True):
    """``v1`` ReplicationController."""

    api_version: str = "v1"
    kind: str = "ReplicationController"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class DaemonSetSpec(Fact, frozen=True):
    """The desired state of a DaemonSet."""

    selector: LabelSelector | None = None
    template: Template = {}
    update_strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    revision_history_limit: int = 10


class DaemonSetStatus(Fact, frozen=True):
    """The observed state of a DaemonSet."""

    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    observed_generation: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None


class DaemonSet(Fact, frozen=True):
    """``apps/v1`` DaemonSet."""

    api_version: str = "apps/v1"
    kind: str = "DaemonSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class Ordinals(Fact, frozen=True):
    """The first ordinal of a StatefulSet."""

    start: int = 0


class StatefulSetSpec(Fact, frozen=True):
    """The desired state of a StatefulSet."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: Template = {}
    volume_claim_templates: tuple[dict[str, Any], ...] = ()
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: Strategy = Strategy()
    revision_history_limit: int = 10
    min_ready_seconds: int = 0
    ordinals: Ordinals = Ordinals()
    persistent_volume_claim_retention_policy: dict[str, str] = {}


class StatefulSetStatus(Fact, frozen=True):
    """The observed state of a StatefulSet."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None


class StatefulSet(Fact, frozen=True):
    """``apps/v1`` StatefulSet."""

    api_version: str = "apps/v1"
    kind: str = "StatefulSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class ControllerRevision(Fact, frozen=True):
    """``apps/v1`` ControllerRevision: one version of a DaemonSet's or StatefulSet's template."""

    api_version: str = "apps/v1"
    kind: str = "ControllerRevision"
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, Any] = {}
    revision: int = 0


class ExitCodeRule(Fact, frozen=True):
    """Exit codes of containers; None for ``container_name`` means any container, ``operator`` is In or NotIn."""

    container_name: str | None = None
    operator: str = "In"
    values: tuple[int, ...] = ()


class PodConditionRule(Fact, frozen=True):
    """A condition of a pod."""

    type: str = ""
    status: str = "True"


class PodFailureRule(Fact, frozen=True):
    """What a failure with these exit codes or conditions means: FailJob, FailIndex, Ignore or Count."""

    action: str = "Count"
    on_exit_codes: ExitCodeRule | None = None
    on_pod_conditions: tuple[PodConditionRule, ...] = ()


class PodFailurePolicy(Fact, frozen=True):
    """Rules for failed pods; the first one that matches decides."""

    rules: tuple[PodFailureRule, ...] = ()


class SuccessRule(Fact, frozen=True):
    """Indexes as ``0,2-5`` (None: all), and how many of them are enough (None: each of them)."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Fact, frozen=True):
    """Rules by which a Job succeeds before all of its indexes have."""

    rules: tuple[SuccessRule, ...] = ()


class JobSpec(Fact, frozen=True):
    """The desired state of a Job; ``completions`` None: one success of any pod is enough."""

    parallelism: int = 1
    completions: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int = 6
    selector: LabelSelector | None = None
    template: Template = {}
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    pod_replacement_policy: str = "TerminatingOrFailed"


class JobStatus(Fact, frozen=True):
    """The observed state of a Job; ``completed_indexes`` as ``0,2-5``."""

    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int | None = None
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    """As ``completed_indexes``; None for a Job without a limit per index."""


class Job(Fact, frozen=True):
    """``batch/v1`` Job."""

    api_version: str = "batch/v1"
    kind: str = "Job"
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJobSpec(Fact, frozen=True):
    """The desired state of a CronJob; ``job_template`` in its API form."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool = False
    job_template: dict[str, Any] = {}
    successful_jobs_history_limit: int = 3
    failed_jobs_history_limit: int = 1


class CronJobStatus(Fact, frozen=True):
    """The observed state of a CronJob."""

    active: tuple[dict[str, Any], ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Fact, frozen=True):
    """``batch/v1`` CronJob."""

    api_version: str = "batch/v1"
    kind: str = "CronJob"
    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


class PodDisruptionBudgetSpec(Fact, frozen=True):
    """The number of pods that must stay or may be unavailable; a number or a percentage."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Fact, frozen=True):
    """The observed state of a budget."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Fact, frozen=True):
    """``policy/v1`` PodDisruptionBudget."""

    api_version: str = "policy/v1"
    kind: str = "PodDisruptionBudget"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


def changed_status(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """A merge patch that changes the status ``old`` to ``new``: the fields that differ, null for None."""
    patch: dict[str, Any] = {}
    for name, spelled in zip(new.__struct_fields__, new.__struct_encode_fields__, strict=True):
        value = getattr(new, name)
        if value != getattr(old, name):
            patch[spelled] = msgspec.to_builtins(value)
    return patch
