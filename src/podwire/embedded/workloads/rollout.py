"""Decides how a Deployment replaces its old ReplicaSets by a new ReplicaSet. Pure.

At any moment at most ``replicas + surge`` pods exist and at least ``replicas - unavailable`` pods are available. Each
plan changes the ``spec.replicas`` of ReplicaSets so that this is true in whatever order the changes take effect. The
next plan follows when the observed numbers change. Old pods that are not available are deleted first, because this does
not reduce the number of available pods.

A change of ``replicas`` during a rollout is spread over all ReplicaSets in proportion to their size; the largest takes
the remainder. Source: ``k8s.io/kubernetes/pkg/controller/deployment`` (rolling.go, sync.go, recreate.go).
"""

import math
from collections.abc import Sequence

import msgspec

from podwire.embedded.workloads.template import equal_templates
from podwire.model.workload import Deployment, DeploymentSpec, ReplicaSet

REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
HISTORY = "deployment.kubernetes.io/revision-history"
_OWN = {REVISION, DESIRED, MAXIMUM, HISTORY, "kubectl.kubernetes.io/last-applied-configuration"}


class Sets(msgspec.Struct, frozen=True):
    """A Deployment's ReplicaSets: the ReplicaSet of the current template, if any, and the old ones, oldest first."""

    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def all(self) -> tuple[ReplicaSet, ...]:
        """The old ReplicaSets, then the new ReplicaSet."""
        return self.old if self.new is None else (*self.old, self.new)

    @property
    def active(self) -> tuple[ReplicaSet, ...]:
        """The ReplicaSets with ``spec.replicas`` above zero."""
        return tuple(item for item in self.all if item.spec.replicas > 0)


class RolloutLimits(msgspec.Struct, frozen=True):
    """The number of pods that may exist beyond ``replicas``, and the number of pods that may be unavailable."""

    surge: int
    unavailable: int


Scaling = dict[str, int]
"""The new ``spec.replicas`` by name of ReplicaSet."""


def partition(deployment: Deployment, sets: Sequence[ReplicaSet]) -> Sets:
    """The ReplicaSet of the current template (the oldest when there are several), and the other ReplicaSets."""
    ordered = sorted(sets, key=lambda s: (s.metadata.creation_timestamp or "", s.metadata.name))
    new = next((s for s in ordered if equal_templates(s.spec.template, deployment.spec.template)), None)
    return Sets(new, tuple(s for s in ordered if s is not new))


def resolve(value: int | str | None, default: str, replicas: int, *, up: bool) -> int:
    """The number of pods of a number or a percentage of ``replicas``; ``default`` for None and for invalid text."""
    limit = default if value is None else value
    if isinstance(limit, int):
        return max(0, limit)
    try:
        share = float(limit.rstrip("%")) * replicas / 100 if limit.endswith("%") else float(limit)
    except ValueError:
        return resolve(default, default, replicas, up=up)
    return max(0, math.ceil(share) if up else math.floor(share))


def limits(spec: DeploymentSpec) -> RolloutLimits:
    """The limits of a Deployment; both are zero only for Recreate, since a rolling update could not proceed."""
    if spec.strategy.type == "Recreate":
        return RolloutLimits(0, 0)
    update = spec.strategy.rolling_update
    surge = resolve(update.max_surge, "25%", spec.replicas, up=True)
    unavailable = min(resolve(update.max_unavailable, "25%", spec.replicas, up=False), spec.replicas)
    return RolloutLimits(surge, unavailable if surge or unavailable else 1)


def maximum(spec: DeploymentSpec) -> int:
    """The maximum number of pods."""
    return spec.replicas + (limits(spec).surge if spec.strategy.type == "RollingUpdate" else 0)


def first_size(spec: DeploymentSpec, old: Sequence[ReplicaSet]) -> int:
    """The first ``spec.replicas`` of a new ReplicaSet while the ``old`` ReplicaSets have pods."""
    if spec.strategy.type == "Recreate":
        return spec.replicas
    return max(0, min(maximum(spec) - desired_replicas(old), spec.replicas))


def rolling(spec: DeploymentSpec, sets: Sets) -> Scaling:
    """The next step of a rolling update; empty when the rollout waits for a change or is complete."""
    new = sets.new
    if new is None:
        return {}
    size = new.spec.replicas
    if size > spec.replicas:
        return {new.metadata.name: spec.replicas}
    grown = min(size + maximum(spec) - desired_replicas(sets.all), spec.replicas) if size < spec.replicas else size
    if grown > size:
        return {new.metadata.name: grown}
    return _shrink_old(spec, sets, new)


def _shrink_old(spec: DeploymentSpec, sets: Sets, new: ReplicaSet) -> Scaling:
    if desired_replicas(sets.old) == 0:
        return {}
    least = spec.replicas - limits(spec).unavailable
    missing = new.spec.replicas - new.status.available_replicas
    spare = desired_replicas(sets.all) - least - missing
    if spare <= 0:
        return {}
    scaling, surplus = _remove_unavailable(sets.old, spare)
    removable = sum(item.status.available_replicas for item in sets.all) - least
    for item in sets.old:
        size = scaling.get(item.metadata.name, item.spec.replicas)
        step = min(size, removable, surplus)
        if step > 0:
            scaling[item.metadata.name] = size - step
            removable -= step
            surplus -= step
    return scaling


def _remove_unavailable(old: Sequence[ReplicaSet], spare: int) -> tuple[Scaling, int]:
    scaling: Scaling = {}
    for item in old:
        unavailable = min(spare, item.spec.replicas - item.status.available_replicas)
        if unavailable > 0:
            scaling[item.metadata.name] = item.spec.replicas - unavailable
            spare -= unavailable
    return scaling, spare


def recreate(spec: DeploymentSpec, sets: Sets, *, old_pods: int) -> Scaling:
    """Scales old ReplicaSets to zero, and the new ReplicaSet to ``replicas`` when no old pod is left."""
    closing = {item.metadata.name: 0 for item in sets.old if item.spec.replicas}
    if closing:
        return closing
    if old_pods == 0 and sets.new is not None and sets.new.spec.replicas != spec.replicas:
        return {sets.new.metadata.name: spec.replicas}
    return {}


def resized(spec: DeploymentSpec, sets: Sets) -> bool:
    """Whether ``replicas`` of the Deployment has changed since its ReplicaSets were scaled last."""
    for item in sets.active:
        annotation = item.metadata.annotations.get(DESIRED)
        if annotation is not None and annotation != str(spec.replicas):
            return True
    return False


def scale(spec: DeploymentSpec, sets: Sets) -> Scaling:
    """The new sizes of ReplicaSets after a change of ``replicas``; no step of a rollout."""
    active = sets.active
    if len(active) <= 1:
        target = active[0] if active else (sets.new or (sets.old[-1] if sets.old else None))
        if target is None or target.spec.replicas == spec.replicas:
            return {}
        return {target.metadata.name: spec.replicas}
    if sets.new is not None and _saturated(spec, sets.new):
        return {item.metadata.name: 0 for item in sets.old if item.spec.replicas}
    return _proportional(spec, active) if spec.strategy.type == "RollingUpdate" else {}


def _saturated(spec: DeploymentSpec, new: ReplicaSet) -> bool:
    annotation = new.metadata.annotations.get(DESIRED)
    full = new.spec.replicas == new.status.available_replicas == spec.replicas
    return full and annotation == str(spec.replicas)


def _proportional(spec: DeploymentSpec, active: Sequence[ReplicaSet]) -> Scaling:
    total = desired_replicas(active)
    change = (maximum(spec) if spec.replicas > 0 else 0) - total
    growing = change > 0
    # The largest first; among equal sizes the newest first when growing, the oldest first when shrinking.
    ordered = sorted(active, key=lambda s: s.metadata.creation_timestamp or "", reverse=growing)
    ordered.sort(key=lambda s: -s.spec.replicas)
    sizes: Scaling = {}
    assigned = 0
    for item in ordered:
        share = _share(spec, item, total)
        step = max(0, min(share, change - assigned)) if growing else min(0, max(share, change - assigned))
        sizes[item.metadata.name] = item.spec.replicas + step
        assigned += step
    if ordered:
        first = ordered[0]
        sizes[first.metadata.name] = max(0, sizes[first.metadata.name] + change - assigned)
    before = {item.metadata.name: item.spec.replicas for item in active}
    return {name: size for name, size in sizes.items() if size != before[name]}


def _share(spec: DeploymentSpec, item: ReplicaSet, total: int) -> int:
    if spec.replicas == 0:
        return -item.spec.replicas
    annotation = item.metadata.annotations.get(MAXIMUM, "")
    before = int(annotation) if annotation.isdigit() and int(annotation) else total
    return round(item.spec.replicas * maximum(spec) / before) - item.spec.replicas


def revision_of(item: ReplicaSet | Deployment) -> int:
    """The number in the revision annotation; 0 without the annotation."""
    annotation = item.metadata.annotations.get(REVISION, "")
    return int(annotation) if annotation.isdigit() else 0


def set_annotations(deployment: Deployment, sets: Sets) -> dict[str, str]:
    """The annotations that the new ReplicaSet must have."""
    copied = {key: value for key, value in deployment.metadata.annotations.items() if key not in _OWN}
    present = dict(sets.new.metadata.annotations) if sets.new is not None else {}
    latest = max((revision_of(item) for item in sets.old), default=0) + 1
    current = revision_of(sets.new) if sets.new is not None else 0
    numbers = {DESIRED: str(deployment.spec.replicas), MAXIMUM: str(maximum(deployment.spec))}
    if latest > current:
        if current:
            numbers[HISTORY] = ",".join(filter(None, (present.get(HISTORY, ""), str(current))))
        numbers[REVISION] = str(latest)
    return present | copied | numbers


def obsolete(spec: DeploymentSpec, sets: Sets) -> tuple[ReplicaSet, ...]:
    """Old ReplicaSets without pods beyond the history limit, lowest revision first."""
    empty = [
        item
        for item in sets.old
        if not item.spec.replicas
        and not item.status.replicas
        and item.metadata.deletion_timestamp is None
        and item.status.observed_generation >= item.metadata.generation
    ]
    surplus = len(empty) - spec.revision_history_limit
    return tuple(sorted(empty, key=revision_of)[:surplus]) if surplus > 0 else ()


def desired_replicas(sets: Sequence[ReplicaSet]) -> int:
    """The sum of ``spec.replicas`` of ReplicaSets."""
    return sum(item.spec.replicas for item in sets)
