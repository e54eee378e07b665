"""Policies of Jobs: what failures and successes mean."""

from typing import Any

import msgspec
import pytest
from tests.present import present
from tests.unit.embedded.workloads.sample_pods import NOW, api_time
from tests.unit.embedded.workloads.test_jobplan import job, pods

from podwire.embedded.workloads.jobplan import plan
from podwire.embedded.workloads.jobpolicy import INDEX, judge, numbers
from podwire.model.pod import Pod
from podwire.model.workload import Job

INDEXED: dict[str, Any] = {"completions": 5, "parallelism": 5, "completionMode": "Indexed"}


def failed(index: int, code: int, *conditions: str, at: str = "2020-01-01T00:00:00Z") -> Pod:
    """A failed pod with an exit code and conditions, which ended at a time."""
    state = {"terminated": {"exitCode": code, "finishedAt": at}}
    meta = {"name": "p", "namespace": "d", "annotations": {INDEX: str(index)}, "creationTimestamp": at}
    status = {
        "phase": "Failed",
        "containerStatuses": [{"name": "c", "state": state}],
        "conditions": [{"type": kind, "status": "True"} for kind in conditions],
    }
    return msgspec.convert({"metadata": meta, "status": status}, Pod)


def policy(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"podFailurePolicy": {"rules": list(rules)}}


def codes(action: str, *values: int, operator: str = "In") -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values)}}


IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(
    ("rules", "pod", "counted", "indexes", "fatal"),
    [
        ([codes("FailJob", 42)], failed(0, 42), 1, set(), "failed with exit code 42 matching FailJob rule at index 0"),
        ([codes("FailJob", 42)], failed(0, 1), 1, set(), ""),
        ([codes("FailIndex", 42, operator="NotIn")], failed(3, 1), 1, {3}, ""),
        ([IGNORE, codes("FailJob", 1)], failed(0, 1, "DisruptionTarget"), 0, set(), ""),
        ([IGNORE, codes("FailJob", 1)], failed(0, 1), 1, set(), "matching FailJob rule at index 1"),
        ([codes("Count", 1), codes("FailJob", 1)], failed(0, 1), 1, set(), ""),
    ],
)
def test_first_matching_rule_decides(
    rules: list[dict[str, Any]], pod: Pod, counted: int, indexes: set[int], fatal: str
) -> None:
    result = judge(job(**policy(*rules)), [pod])
    assert (len(result.counted), set(result.indexes)) == (counted, indexes)
    assert fatal in result.fatal and bool(result.fatal) == bool(fatal)


def ended(spec: Job, result: list[Pod]) -> tuple[str, str]:
    """Type and reason of the last condition of a Job that ends; empty texts for one that goes on."""
    chosen = plan(spec, result, NOW)
    return ("", "") if chosen.ended is None else (chosen.ended.type, chosen.ended.reason)


def test_a_fatal_failure_ends_the_job() -> None:
    spec = job(**INDEXED, **policy(codes("FailJob", 42)))
    assert ended(spec, [failed(0, 42), *pods("a1")]) == ("Failed", "PodFailurePolicy")


def test_failed_indexes_stay_and_fail_the_job_last() -> None:
    spec = job(**INDEXED, backoffLimitPerIndex=1, backoffLimit=1 << 31)
    twice = [failed(1, 1), failed(1, 1)]
    chosen = plan(spec, [*twice, failed(2, 1), *pods("s0 a3")], NOW)
    assert (chosen.ended, chosen.start, chosen.status.failed_indexes) == (None, (2, 4), "1")
    assert ended(spec, [*twice, *pods("s0 s2 s3 s4")]) == ("Failed", "FailedIndexes")
    few = job(**INDEXED, backoffLimitPerIndex=0, maxFailedIndexes=1)
    assert ended(few, [failed(1, 1)]) == ("", "")
    assert ended(few, [failed(1, 1), failed(2, 1)]) == ("Failed", "MaxFailedIndexesExceeded")


def test_only_failed_indexes_wait_for_their_back_off() -> None:
    spec = job(**INDEXED, backoffLimitPerIndex=3)
    recent = failed(1, 1, at=api_time(0))
    chosen = plan(spec, [recent], NOW)
    assert (chosen.start, present(chosen.again_s)) == ((0, 2, 3, 4), 10.0)


@pytest.mark.parametrize(
    ("rule", "text", "met"),
    [
        ({"succeededIndexes": "0,2-3"}, "s0 s2", False),
        ({"succeededIndexes": "0,2-3"}, "s0 s2 s3", True),
        ({"succeededIndexes": "0-3", "succeededCount": 2}, "s3 s1", True),
        ({"succeededIndexes": "0-3", "succeededCount": 2}, "s3 s4", False),
        ({"succeededCount": 2}, "s3 s4", True),
    ],
)
def test_success_policy_completes_a_job(rule: dict[str, Any], text: str, met: bool) -> None:
    spec = job(**INDEXED, successPolicy={"rules": [rule]})
    assert ended(spec, pods(text)) == (("Complete", "SuccessPolicy") if met else ("", ""))


def test_replacement_waits_for_the_end_of_pods() -> None:
    spec = job(completions=2, parallelism=2, podReplacementPolicy="Failed")
    assert plan(spec, pods("g0 a1"), NOW).start == ()


def test_numbers_of_a_text() -> None:
    assert (numbers("0,2-4,9"), numbers(""), numbers("x,1-y,3")) == ({0, 2, 3, 4, 9}, set(), {3})
