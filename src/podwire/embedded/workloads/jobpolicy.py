"""Evaluates the failures and successes of a Job's pods under the Job's policies. Pure.

* ``podFailurePolicy``: the first rule that matches a failed pod, by exit codes or by conditions of the pod, decides
  that the Job fails, that the index fails, that the failure is ignored, or that it counts as without a policy.
* ``backoffLimitPerIndex``: an index with more failures fails, while other indexes go on.
* ``successPolicy``: the Job succeeds when chosen indexes, or a number of them, have succeeded.

Source: ``k8s.io/kubernetes/pkg/controller/job`` (``pod_failure_policy.go``, ``success_policy.go``).
"""

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from podwire.model.pod import Pod
from podwire.model.workload import ExitCodeRule, Job, PodConditionRule, PodFailureRule

INDEX = "batch.kubernetes.io/job-completion-index"
NO_INDEX = -1


class Failures(msgspec.Struct, frozen=True):
    """Failed pods that count, indexes that have failed, and why the Job fails at once (empty: it does not)."""

    counted: tuple[Pod, ...] = ()
    indexes: frozenset[int] = frozenset()
    fatal: str = ""


def index_of(pod: Pod) -> int:
    """The completion index of a pod; ``NO_INDEX`` when the pod has no index."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdigit() else NO_INDEX


def judge(job: Job, failed: Iterable[Pod]) -> Failures:
    """The failures that count, the failed indexes, and whether the Job fails."""
    rules = job.spec.pod_failure_policy.rules if job.spec.pod_failure_policy is not None else ()
    counted: list[Pod] = []
    indexes: set[int] = set()
    fatal = ""
    for pod in failed:
        action, why = _action(rules, pod)
        if action == "Ignore":
            continue
        counted.append(pod)
        if action == "FailJob":
            fatal = fatal or why
        elif action == "FailIndex":
            indexes.add(index_of(pod))
    limit = job.spec.backoff_limit_per_index
    if limit is not None:
        numbers = Counter(map(index_of, counted))
        indexes |= {index for index, number in numbers.items() if number > limit}
    return Failures(tuple(counted), frozenset(indexes), fatal)


def _action(rules: Iterable[PodFailureRule], pod: Pod) -> tuple[str, str]:
    """The action of the first rule that matches, and the message for a condition; empty without such a rule."""
    for number, rule in enumerate(rules):
        if rule.on_exit_codes is not None:
            event = _exited(rule.on_exit_codes, pod)
        else:
            event = _has_condition(rule.on_pod_conditions, pod)
        if event:
            return rule.action, f"{event} matching {rule.action} rule at index {number}"
    return "", ""


def _exited(rule: ExitCodeRule, pod: Pod) -> str:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        code = (status.state.get("terminated") or {}).get("exitCode", 0)
        if code == 0 or rule.container_name not in (None, status.name):
            continue
        if (code in rule.values) == (rule.operator == "In"):
            return f"Container {status.name} for pod {_name(pod)} failed with exit code {code}"
    return ""


def _has_condition(rules: Iterable[PodConditionRule], pod: Pod) -> str:
    for rule in rules:
        for condition in pod.status.conditions:
            if (condition.type, condition.status) == (rule.type, rule.status):
                return f"Pod {_name(pod)} has condition {rule.type}"
    return ""


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def failure_of_indexes(job: Job, failed: Collection[int], succeeded: int) -> tuple[str, str]:
    """Reason and message of a Job that fails by its failed indexes; empty texts while it goes on."""
    if job.spec.backoff_limit_per_index is None or not failed:
        return "", ""
    most = job.spec.max_failed_indexes
    if most is not None and len(failed) > most:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return "MaxFailedIndexesExceeded", message
    if len(failed) + succeeded >= (job.spec.completions or 0):
        return "FailedIndexes", "Job has failed indexes"
    return "", ""


def success_of_rules(job: Job, succeeded: Collection[int]) -> str:
    """Which rule of the success policy is met, as a condition's message; empty without such a rule."""
    rules = job.spec.success_policy.rules if job.spec.success_policy is not None else ()
    for number, rule in enumerate(rules):
        required = numbers(rule.succeeded_indexes) if rule.succeeded_indexes is not None else None
        met = set(succeeded) if required is None else set(succeeded) & required
        needed = rule.succeeded_count if rule.succeeded_count is not None else len(required or ())
        if needed and len(met) >= needed:
            return f"Matched rules at index {number}"
    return ""


def numbers(text: str) -> set[int]:
    """The numbers of a text like ``0,2-5``; parts that are no numbers are left out."""
    indexes: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            indexes.update(range(int(first), int(last or first) + 1))
    return indexes
