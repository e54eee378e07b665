"""Jobs: pods to start, back-off, and the end of a Job."""

from typing import Any

import msgspec
import pytest
from tests.present import present
from tests.unit.embedded.workloads.sample_pods import NOW, api_time, make_pod

from podwire.embedded.workloads.job import pod_body
from podwire.embedded.workloads.jobplan import expires_in_s, finished, plan, ranges
from podwire.embedded.workloads.jobpolicy import INDEX, NO_INDEX
from podwire.model.pod import Pod
from podwire.model.workload import Job


def job(status: dict[str, Any] | None = None, *, policy: str = "Never", **spec: Any) -> Job:
    body = {
        "metadata": {"name": "j", "uid": "J", "namespace": "d"},
        "spec": {"template": {"spec": {"restartPolicy": policy, "containers": [{"name": "c"}]}}} | spec,
        "status": {"startTime": "2026-01-01T11:59:00Z"} | (status or {}),
    }
    return msgspec.convert(body, Job)


def pods(text: str) -> list[Pod]:
    """``a0 s1 f2``: alive, succeeded, failed, going (g), each with an index."""
    phases = {"a": "Running", "s": "Succeeded", "f": "Failed", "g": "Running"}
    return [
        make_pod(
            f"j-{n}",
            ready=word[0] == "a",
            phase=phases[word[0]],
            going=word[0] == "g",
            annotations={INDEX: word[1:]},
            creationTimestamp=api_time(-600),
        )
        for n, word in enumerate(text.split())
    ]


STARTS = [
    ("one", {"completions": 1}, "", 1),
    ("as many as run side by side", {"completions": 5, "parallelism": 3}, "", 3),
    ("no more than are left", {"completions": 5, "parallelism": 3}, "s0 s1 s2 a3", 1),
    ("replaces one that is going", {"completions": 2, "parallelism": 2}, "g0 a1", 1),
    ("work queue", {"parallelism": 2}, "", 2),
    ("a work queue that is done starts none", {"parallelism": 2}, "s0 a1", 0),
    ("none while suspended", {"completions": 1, "suspend": True}, "", 0),
    ("none at zero", {"completions": 2, "parallelism": 0}, "", 0),
]


@pytest.mark.parametrize(("spec", "text", "want"), [row[1:] for row in STARTS], ids=[row[0] for row in STARTS])
def test_number_of_pods_to_start(spec: dict[str, Any], text: str, want: int) -> None:
    chosen = plan(job(**spec), pods(text), NOW)
    assert len(chosen.start) == want
    assert set(chosen.start) <= {NO_INDEX}


def test_indexes() -> None:
    spec: dict[str, Any] = {"completions": 5, "parallelism": 3, "completionMode": "Indexed"}
    chosen = plan(job(**spec), pods("s0 a1 s3 s3"), NOW)
    assert chosen.start == (2, 4)
    assert (chosen.status.succeeded, chosen.status.completed_indexes) == (2, "0,3")
    done = plan(job(**spec), pods("s0 s1 s2 s3 s4"), NOW)
    assert (present(done.ended).type, done.status.completed_indexes) == ("Complete", "0-4")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([1], "1"), ([1, 2], "1,2"), ([0, 2, 3, 4, 9], "0,2-4,9"), ([3, 1, 2], "1-3")],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_complete() -> None:
    chosen = plan(job(completions=2), pods("s0 s1 a2"), NOW)
    assert (present(chosen.ended).type, len(chosen.delete), chosen.status.completion_time) == (
        "Complete",
        1,
        api_time(0),
    )
    assert [c.type for c in chosen.status.conditions] == ["SuccessCriteriaMet", "Complete"]
    over = job(msgspec.to_builtins(chosen.status), completions=2, ttlSecondsAfterFinished=30)
    assert present(finished(over)).type == "Complete"
    assert plan(over, pods("s0 s1"), NOW).start == ()
    assert expires_in_s(over, NOW) == 30
    assert expires_in_s(job(completions=2), NOW) is None
    queue = plan(job(parallelism=2), pods("s0 s1"), NOW)
    assert present(queue.ended).type == "Complete"


def test_failed_after_the_limit() -> None:
    assert plan(job(completions=1, backoffLimit=1), pods("f0"), NOW).ended is None
    ended = plan(job(completions=1, backoffLimit=1), pods("f0 f1 a2"), NOW)
    assert (present(ended.ended).type, present(ended.ended).reason, ended.status.failed) == (
        "Failed",
        "BackoffLimitExceeded",
        3,
    )
    assert [c.type for c in ended.status.conditions] == ["FailureTarget", "Failed"]
    assert len(ended.delete) == 1
    restarted = make_pod("r")
    status = msgspec.convert(
        {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 4}]}, type(restarted.status)
    )
    restarted = msgspec.structs.replace(restarted, status=status)
    assert present(plan(job(policy="OnFailure", backoffLimit=4), [restarted], NOW).ended).type == "Failed"
    assert plan(job(policy="OnFailure", backoffLimit=5), [restarted], NOW).ended is None


def test_backoff_after_failures() -> None:
    recent = make_pod("f", phase="Failed", ready=False, creationTimestamp=api_time(-3))
    chosen = plan(job(completions=1), [recent], NOW)
    assert (chosen.start, chosen.again_s) == ((), 7.0)
    late = make_pod("f", phase="Failed", ready=False, creationTimestamp=api_time(-11))
    assert len(plan(job(completions=1), [late], NOW).start) == 1
    assert plan(job(completions=1), [late, recent], NOW).again_s == 17.0


def test_deadline() -> None:
    chosen = plan(job(completions=1, activeDeadlineSeconds=50), pods("a0"), NOW)
    assert (present(chosen.ended).reason, len(chosen.delete)) == ("DeadlineExceeded", 1)
    early = plan(job(completions=1, activeDeadlineSeconds=90), pods("a0"), NOW)
    assert early.ended is None
    assert 30 <= present(early.again_s) <= 30.2


def test_suspend_and_resume() -> None:
    suspended = plan(job(completions=1, suspend=True), pods("a0"), NOW)
    assert len(suspended.delete) == 1
    assert (suspended.status.active, suspended.status.start_time) == (0, None)
    assert (suspended.status.conditions[0].type, suspended.status.conditions[0].status) == (
        "Suspended",
        "True",
    )
    status = msgspec.to_builtins(suspended.status) | {"startTime": None}
    resumed = plan(job(status, completions=1), [], NOW)
    assert (resumed.status.conditions[0].reason, resumed.status.start_time) == ("JobResumed", api_time(0))


def test_surplus_pods_are_deleted() -> None:
    assert len(plan(job(completions=5, parallelism=1), pods("a0 a1 a2"), NOW).delete) == 2


def test_indexed_pods_carry_their_index() -> None:
    body = pod_body(job(completions=2, completionMode="Indexed"), 1)
    assert body["metadata"]["annotations"] == {INDEX: "1"}
    assert body["metadata"]["generateName"] == "j-1-"
    assert body["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert body["spec"]["hostname"] == "j-1"
    assert body["spec"]["containers"][0]["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "1"}]
    plain = pod_body(job(), NO_INDEX)
    assert "annotations" not in plain["metadata"]
