"""A pod's status in the API, computed from the states of its containers. Pure.

Conditions, phases and reasons follow kubernetes pkg/kubelet/status and kubelet_pods.go (getPhase). The result is the
content of a strategic merge patch of ``pods/status``: conditions of other writers stay, and the transition time of a
condition changes only when its status changes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from podwire.embedded.kubelet.lifecycle import ContainerState, initialized, should_restart
from podwire.embedded.kubelet.orders import ContainerRecord
from podwire.model.pod import Pod

Json = dict[str, Any]
ID_SCHEME: Final = "podwire://"


EVICTED: Final = "Evicted"
PENDING_RESIZE: Final = "PodResizePending"
RUNNING_RESIZE: Final = "PodResizeInProgress"


class ResizeState(msgspec.Struct, frozen=True):
    """Why the resources in force are not the wanted ones: a condition of the pod."""

    condition: str
    reason: str
    message: str


class PodVerdict(msgspec.Struct, frozen=True):
    """The facts of a pod's status that do not come from its containers; empty where they are not known yet."""

    host_ips: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    start_time: str = ""
    up: bool = False
    phase: str = ""
    """Succeeded or Failed; empty while the pod has not ended."""
    reason: str = ""
    message: str = ""
    resize: ResizeState | None = None

    @property
    def rejected(self) -> bool:
        """Whether the node refused the pod, which never started; such a pod has no statuses of containers."""
        return self.phase == "Failed" and not self.start_time


def render_status(pod: Pod, states: Mapping[str, ContainerState], verdict: PodVerdict, now: str) -> Json:
    """The status; ``now`` is the transition time of conditions whose status differs from ``pod.status``."""
    spec = pod.spec
    known = dict(states)
    phase = verdict.phase or _phase(pod, known)
    done_init = initialized(pod, known)
    mains = [known[container.name] for container in spec.containers]
    sidecars = [known[c.name] for c in spec.init_containers if known[c.name].sidecar]
    unready = [s.spec.name for s in (*sidecars, *mains) if not s.ready]
    status: Json = {
        "phase": phase,
        "conditions": [
            *_conditions(pod, phase, unready, done_init=done_init, up=verdict.up, now=now),
            *_resize(pod, verdict.resize, now),
            *_disruption(pod, verdict, now),
        ],
        "qosClass": qos_class(pod),
        **({} if verdict.rejected else _container_statuses(pod, known)),
    }
    if pod.metadata.generation:
        status["observedGeneration"] = pod.metadata.generation
    for key, value in (("reason", verdict.reason), ("message", verdict.message), ("startTime", verdict.start_time)):
        if value:
            status[key] = value
    if verdict.host_ips:
        status |= {"hostIP": verdict.host_ips[0], "hostIPs": [{"ip": ip} for ip in verdict.host_ips]}
    if verdict.ips:
        gone = [p.ip for p in pod.status.pod_ips if p.ip and p.ip not in verdict.ips]
        status["podIP"] = verdict.ips[0]
        status["podIPs"] = [{"ip": ip} for ip in verdict.ips] + [{"$patch": "delete", "ip": ip} for ip in gone]
    return status


def _container_statuses(pod: Pod, states: Mapping[str, ContainerState]) -> Json:
    """The statuses of all containers, by the fields of the pod's status."""
    spec = pod.spec
    statuses: Json = {
        "containerStatuses": [_container(states[c.name], _waiting(pod, states[c.name])) for c in spec.containers]
    }
    if spec.init_containers:
        statuses["initContainerStatuses"] = [
            _container(states[c.name], _waiting(pod, states[c.name]), init=True) for c in spec.init_containers
        ]
    if spec.ephemeral_containers:
        statuses["ephemeralContainerStatuses"] = [
            _container(states[c.name], _waiting(pod, states[c.name])) for c in spec.ephemeral_containers
        ]
    return statuses


def _phase(pod: Pod, states: Mapping[str, ContainerState]) -> str:
    policy = pod.spec.restart_policy
    if not initialized(pod, dict(states)):
        failed = [
            states[c.name] for c in pod.spec.init_containers if not states[c.name].sidecar and states[c.name].code
        ]
        return "Failed" if failed and policy == "Never" else "Pending"
    mains = [states[c.name] for c in pod.spec.containers]
    if any(s.record is None for s in mains):
        return "Pending"
    over = [s.code for s in mains if s.code is not None and not should_restart(policy, s.code)]
    if len(over) < len(mains):
        return "Running"
    return "Failed" if any(over) else "Succeeded"


def final_phase(pod: Pod, states: Mapping[str, ContainerState]) -> str:
    """The phase of a pod whose containers have ended for good, whatever the restart policy says."""
    ended = _phase(pod, states)
    if ended in ("Succeeded", "Failed"):
        return ended
    return "Succeeded" if all(states[container.name].code == 0 for container in pod.spec.containers) else "Failed"


def _conditions(pod: Pod, phase: str, unready: list[str], *, done_init: bool, up: bool, now: str) -> list[Json]:
    ended = phase in ("Succeeded", "Failed")
    containers_ready = not ended and not unready
    reason, message = "", ""
    if ended:
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    elif unready:
        reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    gates = _open_gates(pod)
    gate_reason = ("ReadinessGatesNotReady", "; ".join(gates)) if containers_ready and gates else (reason, message)
    init_reason = ("", "") if done_init else ("ContainersNotInitialized", "containers with incomplete status")
    if ended and phase == "Succeeded":
        init_reason = ("PodCompleted", "")
    conditions = (
        ("PodReadyToStartContainers", up and not ended, "", ""),
        ("Initialized", done_init, *init_reason),
        ("Ready", containers_ready and not gates, *gate_reason),
        ("ContainersReady", containers_ready, reason, message),
        ("PodScheduled", True, "", ""),
    )
    return [_condition(pod, kind, holds, cause, text, now) for kind, holds, cause, text in conditions]


def _disruption(pod: Pod, verdict: PodVerdict, now: str) -> list[Json]:
    """The condition of a pod that the kubelet has evicted."""
    if verdict.reason != EVICTED:
        return []
    return [_condition(pod, "DisruptionTarget", True, "TerminationByKubelet", verdict.message, now)]


def _resize(pod: Pod, resize: ResizeState | None, now: str) -> list[Json]:
    """The condition of an unfinished resize; the patch deletes conditions that are no longer true."""
    stale = {c.type for c in pod.status.conditions} & {PENDING_RESIZE, RUNNING_RESIZE}
    deleted = [{"$patch": "delete", "type": kind} for kind in stale if resize is None or kind != resize.condition]
    if resize is None:
        return deleted
    return [*deleted, _condition(pod, resize.condition, True, resize.reason, resize.message, now)]


def _condition(pod: Pod, kind: str, holds: bool, reason: str, message: str, now: str) -> Json:  # noqa: PLR0913
    state = "True" if holds else "False"
    before = next((c for c in pod.status.conditions if c.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == state else None
    condition: Json = {"type": kind, "status": state, "lastProbeTime": None, "lastTransitionTime": since or now}
    condition["reason"] = reason or None
    condition["message"] = message or None
    if pod.metadata.generation:
        condition["observedGeneration"] = pod.metadata.generation
    return condition


def _open_gates(pod: Pod) -> list[str]:
    statuses = {c.type: c.status for c in pod.status.conditions}
    names = [str(gate.get("conditionType", "")) for gate in pod.spec.readiness_gates]
    return [
        f'corresponding condition of pod readiness gate "{name}" '
        + ("does not exist." if name not in statuses else f"is not True: {statuses[name]}")
        for name in names
        if statuses.get(name) != "True"
    ]


def _waiting(pod: Pod, state: ContainerState) -> tuple[str, str]:
    if state.waiting[0]:
        return state.waiting
    return "PodInitializing" if pod.spec.init_containers else "ContainerCreating", ""


def _container(state: ContainerState, waiting: tuple[str, str], *, init: bool = False) -> Json:
    """The status of one container; an init container that is no sidecar is ready when it has succeeded."""
    record = state.record
    shown: Json = {
        "name": state.spec.name,
        "image": state.spec.image,
        "imageID": "",
        "ready": state.code == 0 if init and not state.sidecar else state.ready,
        "started": state.started and state.running,
        "restartCount": record.attempt if record else max(0, state.attempts - 1),
        "state": {"waiting": _waiting_state(waiting)},
        "lastState": {},
    }
    resources = state.spec.resources
    if resources.requests or resources.limits:
        shown["resources"] = msgspec.to_builtins(resources)
    if resources.requests:
        shown["allocatedResources"] = dict(resources.requests)
    if record is not None:
        shown |= {"containerID": ID_SCHEME + record.id, "imageID": f"{ID_SCHEME}{state.spec.image}"}
        if not record.finished:
            shown["state"] = {"running": {"startedAt": record.started_at}}
        elif state.waiting[0]:
            shown["lastState"] = terminated(record)
        else:
            shown["state"] = terminated(record)
    if state.previous is not None and not shown["lastState"]:
        shown["lastState"] = terminated(state.previous)
    return shown


def _waiting_state(waiting: tuple[str, str]) -> Json:
    return {"reason": waiting[0], "message": waiting[1]} if waiting[1] else {"reason": waiting[0]}


def terminated(record: ContainerRecord) -> Json:
    """The ``terminated`` state of a container run that has ended."""
    state: Json = {
        "exitCode": record.code,
        "reason": record.reason,
        "startedAt": record.started_at,
        "finishedAt": record.finished_at,
        "containerID": ID_SCHEME + record.id,
    }
    if record.signal:
        state["signal"] = record.signal
    if record.message:
        state["message"] = record.message
    return {"terminated": state}


def qos_class(pod: Pod) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory of all containers."""
    resources = [c.resources for c in pod.spec.init_containers + pod.spec.containers]
    kinds = ("cpu", "memory")
    if not any(r.requests.get(k) or r.limits.get(k) for r in resources for k in kinds):
        return "BestEffort"
    pairs = [(r.limits.get(k), r.requests.get(k)) for r in resources for k in kinds]
    same = all(limit and str(request or limit) == str(limit) for limit, request in pairs)
    return "Guaranteed" if same else "Burstable"


def same_status(first: Json, second: Json, ignore: Iterable[str] = ()) -> bool:
    """Whether two rendered statuses are equal apart from the fields in ``ignore``."""
    skip: Callable[[str], bool] = frozenset(ignore).__contains__
    return {k: v for k, v in first.items() if not skip(k)} == {k: v for k, v in second.items() if not skip(k)}


def is_news(status: Json, before: Json) -> bool:
    """Whether the status must be reported at once: the phase or the status of a condition has changed."""
    if not before:
        phase: str = status["phase"]
        return phase != "Pending"

    def states(rendered: Json) -> list[tuple[str, str]]:
        return [(rendered["phase"], ""), *((c["type"], c.get("status", "")) for c in rendered["conditions"])]

    return states(status) != states(before)
