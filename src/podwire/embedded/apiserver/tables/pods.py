"""The row of a Pod, with one state that summarizes all its containers.

The state starts as the phase. The state of a container replaces it: first of the init containers, in order, up to the
first that is not done; when all are done, of the containers from last to first, so that the first container wins. A
deletion replaces every other state. Restarts are counted for init containers while they run, then for containers and
restartable init containers.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.tables.cells import (
    AGE,
    NAME,
    NONE,
    Column,
    Json,
    Printer,
    age,
    at,
    condition,
    count,
    human_duration,
    is_true,
    name,
    parse_time,
    wide,
)

COLUMNS = (
    NAME,
    Column("Ready"),
    Column("Status"),
    Column("Restarts"),
    AGE,
    *wide("IP", "Node", "Nominated Node", "Readiness Gates"),
)


def _ended(state: Json) -> str:
    """Why a terminated container ended."""
    if state.get("reason"):
        return str(state["reason"])
    if state.get("signal"):
        return f"Signal:{state['signal']}"
    return f"ExitCode:{state.get('exitCode', 0)}"


def _restartable(pod: Json) -> set[str]:
    init_containers = at(pod, "spec.initContainers", [])
    return {item["name"] for item in init_containers if item.get("restartPolicy") == "Always"}


def _init_state(index: int, status: Json, total: int) -> str:
    """The pod's state while this init container is not done."""
    ended, waiting = at(status, "state.terminated"), at(status, "state.waiting.reason", "")
    if ended is not None:
        return "Init:" + _ended(ended)
    if waiting and waiting != "PodInitializing":
        return f"Init:{waiting}"
    return f"Init:{index}/{total}"


def _initializing(pod: Json, sidecars: set[str]) -> tuple[str, int]:
    """The state by the first init container that is not done (empty when all are), and ready sidecars."""
    ready = 0
    for index, status in enumerate(at(pod, "status.initContainerStatuses", [])):
        ended = at(status, "state.terminated")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if status.get("name") in sidecars and status.get("started"):
            ready += bool(status.get("ready"))
            continue
        return _init_state(index, status, len(at(pod, "spec.initContainers", []))), ready
    return "", ready


def _running(pod: Json, state: str) -> tuple[str, int]:
    """The state by the containers, and how many of them are ready."""
    ready = 0
    for status in reversed(at(pod, "status.containerStatuses", [])):
        ended, waiting = at(status, "state.terminated"), at(status, "state.waiting.reason")
        if waiting:
            state = waiting
        elif ended is not None:
            state = _ended(ended)
        elif status.get("ready") and at(status, "state.running") is not None:
            ready += 1
    if state == "Completed" and ready:
        state = "Running" if is_true(pod, "Ready") else "NotReady"
    return state, ready


def _restarts(statuses: Iterable[Json], now: datetime) -> str:
    total, last = 0, None
    for status in statuses:
        total += status.get("restartCount", 0)
        ended = parse_time(at(status, "lastState.terminated.finishedAt"))
        if ended is not None and (last is None or ended > last):
            last = ended
    return f"{total} ({human_duration((now - last).total_seconds())} ago)" if total and last else str(total)


def _phase(pod: Json) -> str:
    if condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        return "SchedulingGated"
    return str(at(pod, "status.reason") or at(pod, "status.phase", ""))


def _state(pod: Json, now: datetime) -> tuple[str, int, str]:
    """State, ready containers, restarts."""
    sidecars = _restartable(pod)
    inits = at(pod, "status.initContainerStatuses", [])
    state, ready = _initializing(pod, sidecars)
    if state and not is_true(pod, "Initialized"):
        restarts = _restarts(inits, now)
    else:
        state, more = _running(pod, state or _phase(pod))
        ready += more
        counted = [status for status in inits if status.get("name") in sidecars]
        restarts = _restarts(counted + at(pod, "status.containerStatuses", []), now)
    if at(pod, "metadata.deletionTimestamp"):
        if at(pod, "status.reason") == "NodeLost":
            state = "Unknown"
        elif at(pod, "status.phase") not in ("Succeeded", "Failed"):
            state = "Terminating"
    return state, ready, restarts


def _gates(pod: Json) -> str:
    gates = at(pod, "spec.readinessGates", [])
    passed = sum(is_true(pod, gate.get("conditionType", "")) for gate in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


def pod_cells(pod: Json, now: datetime) -> list[Any]:
    """The cells of one Pod."""
    state, ready, restarts = _state(pod, now)
    total = len(at(pod, "spec.containers", [])) + len(_restartable(pod))
    ips = at(pod, "status.podIPs", [])
    return [
        name(pod),
        f"{ready}/{total}",
        state,
        restarts,
        age(pod, now),
        ips[0].get("ip", NONE) if ips else at(pod, "status.podIP") or NONE,
        at(pod, "spec.nodeName") or NONE,
        at(pod, "status.nominatedNodeName") or NONE,
        _gates(pod),
    ]


PODS = Printer(COLUMNS, pod_cells)


def replicas(obj: Json, field: str = "readyReplicas") -> str:
    """``ready/desired`` of a workload."""
    return f"{count(obj, 'status.' + field)}/{count(obj, 'spec.replicas')}"
