"""Chooses the node and the pods of lower priority whose deletion makes room for a pod. Pure.

A node is a candidate when its refusal depends on its pods and the pod fits without all pods of lower priority. Then as
many of these pods as possible stay, most important first: pods whose deletion a PodDisruptionBudget forbids come before
the other pods, so budgets hold where that is possible. Of the candidates, Kubernetes' order decides: fewest budgets
violated, lowest priority of the most important victim, smallest sum of priorities, fewest victims, latest start.

Cost: nothing when no running pod has a lower priority; otherwise the constraints of the pod are computed once per
victim and candidate.

Source: ``k8s.io/kubernetes/pkg/scheduler/framework/preemption`` and ``plugins/defaultpreemption``.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from podwire.embedded.scheduler.filters import constraints_of, refusal
from podwire.embedded.scheduler.usage import NodeUsage, PodDemand, SchedulerState
from podwire.embedded.scheduler.volumes import NO_CLAIMS, VolumeDemand, volume_refusal
from podwire.model.pod import Pod
from podwire.model.storage import PersistentVolume
from podwire.model.workload import PodDisruptionBudget

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
REASON = "PreemptionByScheduler"
"""The reason of the condition ``DisruptionTarget`` of a victim."""
_OFFSET = 2**31
"""Makes every priority positive, so that a sum of priorities grows with each victim."""
_UNSTARTED = "~"
"""Sorts after every time: a pod without a start time counts as the newest."""


class PreemptionRequest(msgspec.Struct, frozen=True):
    """A pod that no node can take; ``movable`` are the nodes whose refusal depends on their pods."""

    demand: PodDemand
    movable: Sequence[str]
    claims: VolumeDemand = NO_CLAIMS
    volumes: Collection[PersistentVolume] = ()


class Preemption(msgspec.Struct, frozen=True):
    """The node for a pod, and the pods to delete there, most important first."""

    node: str
    victims: tuple[PodDemand, ...]
    violations: int = 0
    """The number of victims whose deletion a PodDisruptionBudget forbids."""


def ineligible(pod: Pod, nominated: NodeUsage | None, ending: Collection[str] = ()) -> str:
    """Why the pod must not preempt now, in Kubernetes' words; empty when it may.

    ``nominated`` is the node where an earlier preemption has made room for the pod; ``ending`` are the uids of victims
    whose deletion has been requested and may not be visible yet.
    """
    if pod.spec.preemption_policy == "Never":
        return NEVER
    priority = pod.spec.priority or 0
    for uid, neighbour in nominated.pods.items() if nominated is not None else ():
        if neighbour.priority < priority and (uid in ending or _preempted(neighbour.pod)):
            return TERMINATING
    return ""


def plan(
    request: PreemptionRequest, state: SchedulerState, budgets: Iterable[PodDisruptionBudget]
) -> Preemption | None:
    """The best preemption for a pod; None when deleting pods of lower priority does not help.

    Tries deletions on ``state`` and takes them back; afterwards ``state`` is as before.
    """
    known = list(budgets)
    candidates = []
    for name in request.movable:
        lower = [pod for pod in state.nodes[name].pods.values() if pod.priority < request.demand.priority]
        if lower:
            candidate = _candidate(request, state, name, (lower, known))
            if candidate is not None:
                candidates.append(candidate)
    if not candidates:
        return None
    lowest = min(_cost(candidate) for candidate in candidates)
    cheapest = [candidate for candidate in candidates if _cost(candidate) == lowest]
    return max(cheapest, key=_earliest_start)


def _candidate(
    request: PreemptionRequest,
    state: SchedulerState,
    name: str,
    pods: tuple[Sequence[PodDemand], Sequence[PodDisruptionBudget]],
) -> Preemption | None:
    """The smallest set of victims on one node; None when the pod does not fit without all of them either."""
    lower, budgets = pods
    try:
        for pod in lower:
            state.drop_pod(pod.pod.metadata.uid)
        if not _fits(request, state, name):
            return None
        protected, free = _by_budget(sorted(lower, key=_importance), budgets)
        victims = [pod for pod in protected if not _stays(pod, request, state, name)]
        violations = len(victims)
        victims += [pod for pod in free if not _stays(pod, request, state, name)]
        return Preemption(name, tuple(sorted(victims, key=_importance)), violations) if victims else None
    finally:
        for pod in lower:
            state.put_pod(pod, name)


def _stays(pod: PodDemand, request: PreemptionRequest, state: SchedulerState, name: str) -> bool:
    """Puts a pod back on its node if the new pod still fits."""
    state.put_pod(pod, name)
    if _fits(request, state, name):
        return True
    state.drop_pod(pod.pod.metadata.uid)
    return False


def _fits(request: PreemptionRequest, state: SchedulerState, name: str) -> bool:
    node = state.nodes[name]
    if refusal(constraints_of(request.demand, state), node) is not None:
        return False
    return not volume_refusal(request.claims, request.volumes, node.node)


def _by_budget(
    pods: Sequence[PodDemand], budgets: Sequence[PodDisruptionBudget]
) -> tuple[list[PodDemand], list[PodDemand]]:
    """Pods whose deletion a budget forbids when all pods before them are deleted, and the other pods."""
    allowed_disruptions = [budget.status.disruptions_allowed for budget in budgets]
    protected: list[PodDemand] = []
    free: list[PodDemand] = []
    for pod in pods:
        forbidden = False
        for at, budget in enumerate(budgets):
            if _covers(budget, pod.pod):
                allowed_disruptions[at] -= 1
                forbidden |= allowed_disruptions[at] < 0
        (protected if forbidden else free).append(pod)
    return protected, free


def _covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether the deletion of a pod counts for a budget; a pod that is already being deleted was counted before."""
    meta = pod.metadata
    selector = budget.spec.selector
    return (
        selector is not None
        and budget.metadata.namespace == meta.namespace
        and selector.matches(meta.labels)
        and meta.name not in budget.status.disrupted_pods
    )


def _importance(pod: PodDemand) -> tuple[int, str, str]:
    """Sorts the most important pod first: by priority, then by age."""
    return -pod.priority, pod.pod.status.start_time or _UNSTARTED, pod.pod.metadata.name


def _cost(candidate: Preemption) -> tuple[int, int, int, int]:
    priorities = [pod.priority for pod in candidate.victims]
    total = sum(priority + _OFFSET for priority in priorities)
    return candidate.violations, max(priorities), total, len(priorities)


def _earliest_start(candidate: Preemption) -> str:
    """The earliest start among the most important victims."""
    highest = candidate.victims[0].priority
    starts = (pod.pod.status.start_time or _UNSTARTED for pod in candidate.victims if pod.priority == highest)
    return min(starts)


def _preempted(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None and any(
        condition.type == "DisruptionTarget" and condition.status == "True" and condition.reason == REASON
        for condition in pod.status.conditions
    )
