"""The state of a pod for workloads: active, ready, available, and the order in which pods are deleted.

Source: ``k8s.io/kubernetes/pkg/controller/controller_utils.go`` (``ActivePodsWithRanks``), ``pkg/api/v1/pod``.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence

from podwire.model.pod import Pod
from podwire.runtime.clock import parse_rfc3339

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def parse_time(text: str | None) -> datetime.datetime | None:
    """The instant of an API time; None when the text is empty or not a time."""
    if not text:
        return None
    try:
        return parse_rfc3339(text)
    except ValueError:
        return None


def seconds_since(text: str | None, now: datetime.datetime) -> float:
    """Seconds from an API time until ``now``; 0 when the text is empty or not a time."""
    at = parse_time(text)
    return (now - at).total_seconds() if at is not None else 0.0


def active(pod: Pod) -> bool:
    """Whether the pod has not ended and is not being deleted."""
    return not pod.finished and pod.metadata.deletion_timestamp is None


def ready_time(pod: Pod) -> str | None:
    """The time since which the pod is ready; None when the pod is not ready."""
    for condition in pod.status.conditions:
        if condition.type == "Ready" and condition.status == "True":
            return condition.last_transition_time or ""
    return None


def available_in_s(pod: Pod, min_ready_s: int, now: datetime.datetime) -> float | None:
    """Seconds until the pod is available: 0 when it is available, None when it is not ready."""
    since = ready_time(pod)
    if since is None:
        return None
    if min_ready_s == 0 or not since:
        return 0.0
    return max(0.0, min_ready_s - seconds_since(since, now))


def restarts(pod: Pod) -> int:
    """The number of restarts of all containers of a pod."""
    return sum(status.restart_count for status in pod.status.container_statuses)


def victims(pods: Sequence[Pod], count: int, related: Iterable[Pod] = ()) -> tuple[Pod, ...]:
    """The ``count`` pods to delete first.

    The order is: pods without a node; pending pods; pods that are not ready; lower deletion cost; node with more
    ``related`` pods; shorter time since ready; more restarts; younger pods.
    """
    crowd = Counter(pod.spec.node_name for pod in related or pods if active(pod))

    def rank(pod: Pod) -> tuple[object, ...]:
        phase = {"Pending": 0, "Unknown": 1, "Running": 2}.get(pod.status.phase, 0)
        return (
            bool(pod.spec.node_name),
            phase,
            pod.ready,
            _cost(pod),
            -crowd[pod.spec.node_name],
            _reversed(ready_time(pod)),
            -restarts(pod),
            _reversed(pod.metadata.creation_timestamp),
            pod.metadata.name,
        )

    return tuple(sorted(pods, key=rank)[:count])


def _reversed(text: str | None) -> float:
    at = parse_time(text)
    return -at.timestamp() if at is not None else 0.0


def _cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0
