"""Jobs from start to end."""

import msgspec
import pytest

from podwire.embedded.workloads.job import pod_body
from podwire.embedded.workloads.jobplan import INDEX, NO_INDEX, expires_in_s, finished, plan, ranges
from podwire.model.workload import Job


def job(status=None, *, policy="Never", **spec):
    body = {
        "metadata": {"name": "j", "uid": "J", "namespace": "d"},
        "spec": {"template": {"spec": {"restartPolicy": policy, "containers": [{"name": "c"}]}}} | spec,
        "status": {"startTime": "2026-01-01T11:59:00Z"} | (status or {}),
    }
    return msgspec.convert(body, Job)


def pods(made, text):
    """``a0 s1 f2``: alive, succeeded, failed, going (g), each with an index."""
    phases = {"a": "Running", "s": "Succeeded", "f": "Failed", "g": "Running"}
    return [
        made.pod(
            f"j-{n}",
            ready=word[0] == "a",
            phase=phases[word[0]],
            going=word[0] == "g",
            annotations={INDEX: word[1:]},
            creationTimestamp=made.at(-600),
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
def test_starts(made, spec, text, want) -> None:
    chosen = plan(job(**spec), pods(made, text), made.NOW)
    assert len(chosen.start) == want
    assert set(chosen.start) <= {NO_INDEX}


def test_indexes(made) -> None:
    spec = {"completions": 5, "parallelism": 3, "completionMode": "Indexed"}
    chosen = plan(job(**spec), pods(made, "s0 a1 s3 s3"), made.NOW)
    assert chosen.start == (2, 4)
    assert (chosen.status.succeeded, chosen.status.completed_indexes) == (2, "0,3")
    done = plan(job(**spec), pods(made, "s0 s1 s2 s3 s4"), made.NOW)
    assert (done.ended.type, done.status.completed_indexes) == ("Complete", "0-4")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([1], "1"), ([1, 2], "1,2"), ([0, 2, 3, 4, 9], "0,2-4,9"), ([3, 1, 2], "1-3")],
)
def test_ranges(numbers, text) -> None:
    assert ranges(numbers) == text


def test_complete(made) -> None:
    chosen = plan(job(completions=2), pods(made, "s0 s1 a2"), made.NOW)
    assert (chosen.ended.type, len(chosen.delete), chosen.status.completion_time) == (
        "Complete",
        1,
        made.at(0),
    )
    assert [c.type for c in chosen.status.conditions] == ["SuccessCriteriaMet", "Complete"]
    over = job(msgspec.to_builtins(chosen.status), completions=2, ttlSecondsAfterFinished=30)
    assert finished(over).type == "Complete"
    assert plan(over, pods(made, "s0 s1"), made.NOW).start == ()
    assert expires_in_s(over, made.NOW) == 30
    assert expires_in_s(job(completions=2), made.NOW) is None
    queue = plan(job(parallelism=2), pods(made, "s0 s1"), made.NOW)
    assert queue.ended.type == "Complete"


def test_failed_after_the_limit(made) -> None:
    assert plan(job(completions=1, backoffLimit=1), pods(made, "f0"), made.NOW).ended is None
    ended = plan(job(completions=1, backoffLimit=1), pods(made, "f0 f1 a2"), made.NOW)
    assert (ended.ended.type, ended.ended.reason, ended.status.failed) == (
        "Failed",
        "BackoffLimitExceeded",
        3,
    )
    assert [c.type for c in ended.status.conditions] == ["FailureTarget", "Failed"]
    assert len(ended.delete) == 1
    restarted = made.pod("r")
    status = msgspec.convert(
        {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 4}]}, type(restarted.status)
    )
    restarted = msgspec.structs.replace(restarted, status=status)
    assert plan(job(policy="OnFailure", backoffLimit=4), [restarted], made.NOW).ended.type == "Failed"
    assert plan(job(policy="OnFailure", backoffLimit=5), [restarted], made.NOW).ended is None


def test_backoff_after_failures(made) -> None:
    recent = made.pod("f", phase="Failed", ready=False, creationTimestamp=made.at(-3))
    chosen = plan(job(completions=1), [recent], made.NOW)
    assert (chosen.start, chosen.again_s) == ((), 7.0)
    late = made.pod("f", phase="Failed", ready=False, creationTimestamp=made.at(-11))
    assert len(plan(job(completions=1), [late], made.NOW).start) == 1
    assert plan(job(completions=1), [late, recent], made.NOW).again_s == 17.0


def test_deadline(made) -> None:
    chosen = plan(job(completions=1, activeDeadlineSeconds=50), pods(made, "a0"), made.NOW)
    assert (chosen.ended.reason, len(chosen.delete)) == ("DeadlineExceeded", 1)
    early = plan(job(completions=1, activeDeadlineSeconds=90), pods(made, "a0"), made.NOW)
    assert early.ended is None
    assert 30 <= early.again_s <= 30.2


def test_suspend_and_resume(made) -> None:
    suspended = plan(job(completions=1, suspend=True), pods(made, "a0"), made.NOW)
    assert len(suspended.delete) == 1
    assert (suspended.status.active, suspended.status.start_time) == (0, None)
    assert (suspended.status.conditions[0].type, suspended.status.conditions[0].status) == (
        "Suspended",
        "True",
    )
    status = msgspec.to_builtins(suspended.status) | {"startTime": None}
    resumed = plan(job(status, completions=1), [], made.NOW)
    assert (resumed.status.conditions[0].reason, resumed.status.start_time) == ("JobResumed", made.at(0))


def test_surplus_pods_go(made) -> None:
    assert len(plan(job(completions=5, parallelism=1), pods(made, "a0 a1 a2"), made.NOW).delete) == 2


def test_pods_know_their_index() -> None:
    body = pod_body(job(completions=2, completionMode="Indexed"), 1)
    assert body["metadata"]["annotations"] == {INDEX: "1"}
    assert body["metadata"]["generateName"] == "j-1-"
    assert body["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert body["spec"]["hostname"] == "j-1"
    assert body["spec"]["containers"][0]["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "1"}]
    plain = pod_body(job(), NO_INDEX)
    assert "annotations" not in plain["metadata"]
