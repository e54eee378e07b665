"""The status of a pod in the API, as a table over container states."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.lifecycle import ContainerState, is_sidecar
from podwire.embedded.kubelet.orders import ContainerRecord
from podwire.embedded.kubelet.status import (
    PodVerdict,
    ResizeState,
    final_phase,
    is_news,
    qos_class,
    render_status,
    same_status,
)
from podwire.model.pod import Pod

NOW = "2026-01-01T00:00:00Z"
UP = PodVerdict(("192.0.2.1",), ("10.0.0.5",), NOW, up=True)
RUN = ContainerRecord(name="c", attempt=0, id="abc", log="/l", started_at=NOW)


def over(code: int, attempt: int = 0) -> ContainerRecord:
    reason = "Error" if code else "Completed"
    return msgspec.structs.replace(RUN, finished_at=NOW, code=code, reason=reason, attempt=attempt)


def pod(policy: str = "Always", *, init: bool = False, **status: Any) -> Pod:
    spec: dict[str, Any] = {"restartPolicy": policy, "containers": [{"name": "c", "image": "nginx"}]}
    if init:
        spec["initContainers"] = [{"name": "i"}]
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": status}, Pod)


def render(subject: Pod, sandbox: PodVerdict = UP, **changes: Any) -> dict[str, Any]:
    states = {
        c.name: ContainerState(c, sidecar=is_sidecar(c)) for c in subject.spec.init_containers + subject.spec.containers
    }
    for key, value in changes.items():
        name, _, field = key.partition("_")
        setattr(states[name], field, value)
    return render_status(subject, states, sandbox, NOW)


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status["conditions"]}


@pytest.mark.parametrize(
    ("subject", "changes", "phase", "ready", "state"),
    [
        (pod(), {}, "Pending", "False", "waiting"),
        (pod(), {"c_record": RUN}, "Running", "False", "running"),
        (pod(), {"c_record": RUN, "c_ready": True, "c_started": True}, "Running", "True", "running"),
        (pod(), {"c_record": over(1)}, "Running", "False", "terminated"),
        (pod(), {"c_record": over(1), "c_waiting": ("CrashLoopBackOff", "m")}, "Running", "False", "waiting"),
        (pod("Never"), {"c_record": over(0)}, "Succeeded", "False", "terminated"),
        (pod("Never"), {"c_record": over(3)}, "Failed", "False", "terminated"),
        (pod("OnFailure"), {"c_record": over(3)}, "Running", "False", "terminated"),
        (pod(init=True), {"i_record": RUN}, "Pending", "False", "waiting"),
        (pod("Never", init=True), {"i_record": over(1)}, "Failed", "False", "waiting"),
    ],
    ids=str,
)
def test_phases(subject: Pod, changes: dict[str, Any], phase: str, ready: str, state: str) -> None:
    status = render(subject, **changes)
    assert status["phase"] == phase
    assert conditions(status)["Ready"] == ready
    assert list(status["containerStatuses"][0]["state"]) == [state]


@pytest.mark.parametrize(
    ("subject", "record", "phase"),
    [
        (pod(), over(0), "Succeeded"),
        (pod(), over(137), "Failed"),
        (pod("OnFailure"), over(3), "Failed"),
        (pod("Never"), over(0), "Succeeded"),
        (pod(), None, "Failed"),
    ],
)
def test_removed_pod_ends_whatever_its_restart_policy(subject: Pod, record: ContainerRecord | None, phase: str) -> None:
    [container] = subject.spec.containers
    state = ContainerState(container)
    state.record = record
    assert final_phase(subject, {"c": state}) == phase


def test_a_crash_loop_shows_reason_count_and_last_state() -> None:
    status = render(pod(), c_record=over(2, attempt=3), c_waiting=("CrashLoopBackOff", "back-off 10s"))
    container = status["containerStatuses"][0]
    assert container["restartCount"] == 3
    assert container["state"]["waiting"] == {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    assert container["lastState"]["terminated"]["exitCode"] == 2


def test_transition_time_changes_only_with_the_status() -> None:
    conditions = [{"type": "Initialized", "status": "True", "lastTransitionTime": "then"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "then"}]  # fmt: skip
    status = render(pod(conditions=conditions), c_record=RUN)
    times = {c["type"]: c["lastTransitionTime"] for c in status["conditions"]}
    assert (times["Initialized"], times["Ready"]) == ("then", NOW)


def test_readiness_gates() -> None:
    subject = msgspec.convert(
        {"spec": {"containers": [{"name": "c"}], "readinessGates": [{"conditionType": "x/y"}]}}, Pod
    )
    status = render(subject, c_record=RUN, c_ready=True)
    assert conditions(status) | {"Ready": "False", "ContainersReady": "True"} == conditions(status)
    reasons = {c["type"]: c["reason"] for c in status["conditions"]}
    assert reasons["Ready"] == "ReadinessGatesNotReady"


def test_old_addresses_are_removed() -> None:
    status = render(pod(podIPs=[{"ip": "10.0.0.4"}]), c_record=RUN)
    assert status["podIPs"] == [{"ip": "10.0.0.5"}, {"$patch": "delete", "ip": "10.0.0.4"}]
    assert status["hostIPs"] == [{"ip": "192.0.2.1"}]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
    ids=str,
)
def test_qos(resources: dict[str, Any], expected: str) -> None:
    document = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    assert qos_class(msgspec.convert(document, Pod)) == expected


def test_phase_and_condition_changes_are_urgent() -> None:
    pending, running = render(pod()), render(pod(), c_record=RUN)
    assert not is_news(pending, {})
    assert is_news(running, {})
    assert is_news(running, pending)
    assert not is_news(running, running)
    assert same_status(running, dict(running))


def test_init_container_is_ready_after_it_succeeded() -> None:
    """An init container that is no sidecar is ready when it has succeeded; the main containers wait for their turn."""
    subject = pod(init=True)
    for record, ready in ((RUN, False), (over(1), False), (over(0), True)):
        status = render(subject, i_record=record)
        assert status["initContainerStatuses"][0]["ready"] is ready
        assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_containers_without_init_containers_are_being_created() -> None:
    assert render(pod())["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}


def test_status_names_the_generation_that_it_describes() -> None:
    subject = pod()
    subject = msgspec.structs.replace(subject, metadata=msgspec.structs.replace(subject.metadata, generation=3))
    status = render(subject)
    assert status["observedGeneration"] == 3
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {3}


def test_status_shows_the_resources_of_a_container() -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    subject = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    shown = render(subject)["containerStatuses"][0]
    assert (shown["resources"], shown["allocatedResources"]) == (resources, {"cpu": "1"})


def test_an_evicted_pod_is_a_disruption_target() -> None:
    verdict = msgspec.structs.replace(UP, phase="Failed", reason="Evicted", message="too large")
    result = next(c for c in render(pod(), verdict)["conditions"] if c["type"] == "DisruptionTarget")
    assert (result["status"], result["reason"], result["message"]) == ("True", "TerminationByKubelet", "too large")


def test_rejected_pod_has_no_statuses_of_containers() -> None:
    rejected = PodVerdict(("192.0.2.1",), phase="Failed", reason="SysctlForbidden", message="not allowlisted")
    assert "containerStatuses" not in render(pod(), rejected)
    late = msgspec.structs.replace(rejected, reason="DeadlineExceeded", start_time=NOW)
    assert len(render(pod(), late)["containerStatuses"]) == 1


def test_a_resize_that_is_over_has_no_condition() -> None:
    waiting = msgspec.structs.replace(UP, resize=ResizeState("PodResizePending", "Deferred", "full"))
    reported = {c.get("type"): c.get("reason") for c in render(pod(), waiting)["conditions"]}
    assert reported["PodResizePending"] == "Deferred"
    before = pod(conditions=[{"type": "PodResizePending", "status": "True"}])
    assert {"$patch": "delete", "type": "PodResizePending"} in render(before)["conditions"]
