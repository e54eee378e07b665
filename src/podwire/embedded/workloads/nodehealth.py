"""The conditions and taints that follow from a node's heartbeat, and the pods that must leave the node. Pure.

A heartbeat is a renewal of the node's Lease or a change of its status. The time since the last heartbeat is measured
with the controller's own clock, so the clocks of nodes need not agree. Source:
``k8s.io/kubernetes/pkg/controller/nodelifecycle`` and ``pkg/controller/tainteviction``.
"""

import datetime
from collections.abc import Sequence

import msgspec

from podwire.embedded.scheduler.matching import tolerates
from podwire.embedded.workloads.podstate import seconds_since
from podwire.model.meta import Condition
from podwire.model.node import Node, Taint
from podwire.model.pod import Pod
from podwire.runtime.clock import rfc3339

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_MANAGED = (NOT_READY, UNREACHABLE, UNSCHEDULABLE)
_DEFAULT_TOLERATION_S = 300.0
_CHECKED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def ready_status(node: Node) -> str:
    """The status of the Ready condition: True, False or Unknown; empty when the node has no such condition."""
    return next((c.status for c in node.status.conditions if c.type == "Ready"), "")


def lost_conditions(node: Node, now: datetime.datetime) -> tuple[Condition, ...] | None:
    """The conditions of a node whose heartbeats have stopped; None when Ready is Unknown already."""
    if ready_status(node) == "Unknown":
        return None
    stamp = rfc3339(now)
    foreign = tuple(c for c in node.status.conditions if c.type not in _CHECKED)
    known = {c.type: c for c in node.status.conditions}
    lost = tuple(
        Condition(
            type=kind,
            status="Unknown",
            reason="NodeStatusUnknown",
            message="Kubelet stopped posting node status.",
            last_heartbeat_time=known[kind].last_heartbeat_time if kind in known else stamp,
            last_transition_time=stamp,
        )
        for kind in _CHECKED
    )
    return (*foreign, *lost)


def taints(node: Node, now: datetime.datetime) -> tuple[Taint, ...]:
    """The taints that a node must have: its own taints, and those that follow from its conditions."""
    required: list[tuple[str, str]] = []
    status = ready_status(node)
    if status in ("False", "Unknown"):
        key = NOT_READY if status == "False" else UNREACHABLE
        required += [(key, "NoSchedule"), (key, "NoExecute")]
    if node.spec.unschedulable:
        required.append((UNSCHEDULABLE, "NoSchedule"))
    present = {(taint.key, taint.effect): taint for taint in node.spec.taints}
    unchanged = tuple(
        taint for taint in node.spec.taints if taint.key not in _MANAGED or (taint.key, taint.effect) in required
    )
    stamp = rfc3339(now)
    added = tuple(
        Taint(key=key, effect=effect, time_added=stamp) for key, effect in required if (key, effect) not in present
    )
    return unchanged + added


def eviction_in_s(pod: Pod, node_taints: Sequence[Taint], now: datetime.datetime) -> float | None:
    """Seconds until the pod must leave a node with these taints: 0 for now, None for never.

    A pod without a toleration for not-ready and unreachable nodes stays for five minutes.
    """
    soonest: float | None = None
    for taint in node_taints:
        if taint.effect != "NoExecute":
            continue
        times = [t.toleration_seconds for t in pod.spec.tolerations if tolerates(t, taint)]
        if not times and taint.key in (NOT_READY, UNREACHABLE):
            times = [int(_DEFAULT_TOLERATION_S)]
        if not times:
            return 0.0
        limited = [time for time in times if time is not None]
        if not limited:
            continue
        remaining_s = max(0.0, min(limited) - seconds_since(taint.time_added, now))
        soonest = remaining_s if soonest is None else min(soonest, remaining_s)
    return soonest


def unready_pod(pod: Pod, now: datetime.datetime) -> tuple[Condition, ...] | None:
    """The conditions of a ready pod on a node whose heartbeats have stopped; None when the pod is not ready."""
    if not pod.ready:
        return None
    stamp = rfc3339(now)
    return tuple(
        msgspec.structs.replace(c, status="False", reason="NodeNotReady", last_transition_time=stamp)
        if c.type == "Ready"
        else c
        for c in pod.status.conditions
    )
