"""Decides which pod of a StatefulSet to create or to delete next. Pure.

Pods have ordinals. ``OrderedReady`` acts on one pod at a time, from the lowest ordinal up for creation and from the
highest down for deletion, and only while every lower pod is available. ``Parallel`` does not wait. A rolling update
replaces pods from the highest ordinal down to ``partition`` and waits until each new pod is available. A pod that is
lost during an update is created again with the revision of its ordinal. Source:
``k8s.io/kubernetes/pkg/controller/statefulset/stateful_set_control.go``.
"""

import datetime
from collections.abc import Iterable, Sequence

import msgspec

from podwire.embedded.workloads.podstate import available_in_s
from podwire.embedded.workloads.revisions import HASH
from podwire.model.pod import Pod
from podwire.model.workload import StatefulSet, StatefulSetStatus


class Revision(msgspec.Struct, frozen=True):
    """The hash of the revision that was rolled out last, and the hash of the revision of the template."""

    current: str
    update: str


class StatefulSetPlan(msgspec.Struct):
    """Ordinals to create with their revisions, pods to delete, the status, seconds until the next plan."""

    create: list[tuple[int, str]] = msgspec.field(default_factory=list)
    delete: list[Pod] = msgspec.field(default_factory=list)
    status: StatefulSetStatus = msgspec.field(default_factory=StatefulSetStatus)
    again_s: float | None = None


def ordinal_of(name: str, pod: str) -> int | None:
    """The ordinal in a pod's name; None when the name is not ``<StatefulSet>-<number>``."""
    prefix, _, number = pod.rpartition("-")
    return int(number) if prefix == name and number.isdigit() else None


def plan(item: StatefulSet, pods: Iterable[Pod], revision: Revision, now: datetime.datetime) -> StatefulSetPlan:
    """The plan for a StatefulSet and all pods that it owns."""
    state = _State(item, pods, revision, now)
    chosen = StatefulSetPlan(status=state.status())
    waits = [available_in_s(pod, item.spec.min_ready_seconds, now) for pod in state.every]
    chosen.again_s = min((wait for wait in waits if wait), default=None)
    if item.metadata.deletion_timestamp is not None or state.fill(chosen) or state.condemn(chosen):
        return chosen
    if item.spec.update_strategy.type == "RollingUpdate":
        state.roll(chosen)
    return chosen


class _State:
    def __init__(self, item: StatefulSet, pods: Iterable[Pod], revision: Revision, now: datetime.datetime) -> None:
        self._item = item
        self._revision = revision
        self._now = now
        self._start = item.spec.ordinals.start
        self._ordered = item.spec.pod_management_policy != "Parallel"
        self.every: list[Pod] = []
        self.by_ordinal: dict[int, Pod] = {}
        for pod in pods:
            ordinal = ordinal_of(item.metadata.name, pod.metadata.name)
            if ordinal is not None:
                self.every.append(pod)
                self.by_ordinal[ordinal] = pod
        self._range = range(self._start, self._start + item.spec.replicas)
        self._in_range = [(n, self.by_ordinal.get(n)) for n in self._range]
        self._condemned: list[tuple[int, Pod]] = sorted(
            ((n, pod) for n, pod in self.by_ordinal.items() if n not in self._range), reverse=True
        )

    def fill(self, chosen: StatefulSetPlan) -> bool:
        """Creates missing pods and replaces ended pods; returns whether the next stage must wait for them."""
        for ordinal, pod in self._in_range:
            if pod is None:
                chosen.create.append((ordinal, self._revision_for(ordinal)))
            elif pod.finished and not _terminating(pod):
                chosen.delete.append(pod)
            elif self._healthy(pod):
                continue
            if self._ordered:
                return True
        return bool(chosen.create or chosen.delete)

    def condemn(self, chosen: StatefulSetPlan) -> bool:
        """Deletes pods beyond ``replicas``, highest first; returns whether the next stage must wait for them."""
        for _, pod in self._condemned:
            if not _terminating(pod):
                chosen.delete.append(pod)
            if self._ordered:
                return True
        return bool(self._condemned) and self._ordered

    def roll(self, chosen: StatefulSetPlan) -> None:
        """Replaces the highest pod of another revision when all higher pods are available."""
        lowest = self._start + self._item.spec.update_strategy.rolling_update.partition
        for ordinal, pod in reversed(self._in_range):
            if ordinal < lowest or pod is None:
                return
            if pod.metadata.labels.get(HASH) != self._revision.update:
                if not _terminating(pod):
                    chosen.delete.append(pod)
                    # From now on the ordinal belongs to the new revision, also when its next pod is created.
                    remaining = max(0, chosen.status.current_replicas - 1)
                    chosen.status = msgspec.structs.replace(chosen.status, current_replicas=remaining)
                return
            if not self._healthy(pod):
                return

    def status(self) -> StatefulSetStatus:
        """The status; the current revision becomes the new revision when all pods have it and are available."""
        alive = [pod for pod in self.every if not _terminating(pod)]
        current = _count(alive, self._revision.current)
        updated = _count(alive, self._revision.update)
        settled = [pod for _, pod in self._in_range if pod is not None and self._healthy(pod)]
        done = (
            _count(settled, self._revision.update) == self._item.spec.replicas
            and len(self.every) == self._item.spec.replicas
        )
        return StatefulSetStatus(
            observed_generation=self._item.metadata.generation,
            replicas=len(self.every),
            ready_replicas=sum(pod.ready for pod in alive),
            available_replicas=sum(self._available(pod) for pod in alive),
            current_replicas=updated if done else current,
            updated_replicas=updated,
            current_revision=self._revision.update if done else self._revision.current,
            update_revision=self._revision.update,
            collision_count=self._item.status.collision_count,
        )

    def _revision_for(self, ordinal: int) -> str:
        strategy = self._item.spec.update_strategy
        if strategy.type != "RollingUpdate" or self._revision.current == self._revision.update:
            return self._revision.update
        partition = strategy.rolling_update.partition
        bound = partition or self._item.status.current_replicas
        return self._revision.current if ordinal < self._start + bound else self._revision.update

    def _available(self, pod: Pod) -> bool:
        return available_in_s(pod, self._item.spec.min_ready_seconds, self._now) == 0.0

    def _healthy(self, pod: Pod) -> bool:
        return not _terminating(pod) and self._available(pod)


def _terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _count(pods: Sequence[Pod], digest: str) -> int:
    return sum(pod.metadata.labels.get(HASH) == digest for pod in pods)
