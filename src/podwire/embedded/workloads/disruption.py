"""PodDisruptionBudgets: computes the status that the API server uses to allow or refuse evictions.

``plan`` is pure. The expected number of pods is the sum of the ``replicas`` of their controllers; a pod without a
controller counts as one. Source: ``k8s.io/kubernetes/pkg/controller/disruption``.
"""

import datetime
from collections.abc import Mapping, Sequence

from podwire.embedded.workloads.podstate import active
from podwire.embedded.workloads.rollout import resolve
from podwire.embedded.workloads.statuswriter import write_status
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.resources import PODDISRUPTIONBUDGETS, PODS, REPLICASETS, STATEFULSETS
from podwire.model.meta import Condition, controller_of
from podwire.model.pod import Pod
from podwire.model.workload import (
    PodDisruptionBudget,
    PodDisruptionBudgetStatus,
    ReplicaSet,
    StatefulSet,
    changed_status,
)
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.1
Replicated = ReplicaSet | StatefulSet


def plan(
    budget: PodDisruptionBudget, pods: Sequence[Pod], scales: Mapping[str, int], now: datetime.datetime
) -> PodDisruptionBudgetStatus:
    """The status for the pods that the budget selects; ``scales`` holds ``spec.replicas`` by controller uid."""
    alive = [pod for pod in pods if active(pod)]
    owners = [owner.uid if (owner := controller_of(pod.metadata)) else "" for pod in alive]
    scaled = sum(scales[uid] for uid in set(owners) if uid in scales)
    expected = scaled + sum(uid not in scales for uid in owners)
    spec = budget.spec
    if spec.max_unavailable is not None:
        desired = max(0, expected - resolve(spec.max_unavailable, "0", expected, up=True))
    else:
        desired = resolve(spec.min_available, "1", expected, up=True)
        if isinstance(spec.min_available, int):
            expected = len(alive)
    healthy = sum(pod.ready for pod in alive)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    return PodDisruptionBudgetStatus(
        observed_generation=budget.metadata.generation,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disrupted_pods=budget.status.disrupted_pods,
        conditions=(_condition(budget, allowed, now),),
    )


def _condition(budget: PodDisruptionBudget, allowed: int, now: datetime.datetime) -> Condition:
    status, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    before = next((c for c in budget.status.conditions if c.type == "DisruptionAllowed"), None)
    same = before is not None and before.status == status
    return Condition(
        type="DisruptionAllowed",
        status=status,
        reason=reason,
        last_transition_time=before.last_transition_time if before is not None and same else rfc3339(now),
        observed_generation=budget.metadata.generation,
    )


class DisruptionController:
    """Keeps the status of budgets current; a change of a pod updates the budgets of its namespace that select it."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._budgets = environment.of(PODDISRUPTIONBUDGETS)
        self._replicated = (environment.of(REPLICASETS), environment.of(STATEFULSETS))
        self._pods: Index[Pod] = Index(environment.of(PODS), lambda pod: (pod.metadata.namespace,))
        self._loop = environment.loop("poddisruptionbudget", self._reconcile, interval_s=_INTERVAL_S)
        self._budgets.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(PODS).subscribe(self._pod_changed)
        for informer in self._replicated:
            informer.subscribe(self._replicas_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=1)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        pods = [pod for pod in (old, new) if pod is not None]
        for key, budget in self._budgets.objects.items():
            selector, namespace = budget.spec.selector, budget.metadata.namespace
            if selector is not None and any(
                pod.metadata.namespace == namespace and selector.matches(pod.metadata.labels) for pod in pods
            ):
                self._loop.touch(key)

    def _replicas_changed(self, _key: str, old: Replicated | None, new: Replicated | None) -> None:
        """Handles a change of ``spec.replicas``; the changes of the pods may have arrived earlier."""
        if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
            return
        for item in (old, new):
            for key, budget in self._budgets.objects.items() if item is not None else ():
                if item is not None and budget.metadata.namespace == item.metadata.namespace:
                    self._loop.touch(key)

    def _scales(self) -> dict[str, int]:
        """``spec.replicas`` by the uid of the pods' controller."""
        scales: dict[str, int] = {}
        for informer in self._replicated:
            for item in informer.objects.values():
                scales[item.metadata.uid] = item.spec.replicas
        return scales

    async def _reconcile(self, key: str) -> None:
        budget = self._budgets.get(key)
        if budget is None or budget.spec.selector is None:
            return
        namespace, selector = budget.metadata.namespace, budget.spec.selector
        pods = [p for p in self._pods.of(namespace).values() if selector.matches(p.metadata.labels)]
        status = plan(budget, pods, self._scales(), self._clock.now())
        await write_status(self._client, PODDISRUPTIONBUDGETS, budget.metadata, changed_status(budget.status, status))
