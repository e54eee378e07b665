"""Cron schedules, and the Jobs that CronJobs start."""

import datetime
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.present import present

from podwire.embedded.workloads.cronjob import CronJobPlan, job_body, plan
from podwire.embedded.workloads.cronschedule import parse_schedule
from podwire.errors import ConfigError
from podwire.model.workload import CronJob, Job


def when(text: str, zone: datetime.tzinfo = datetime.UTC) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zone)


TABLE = [
    ("* * * * *", "2026-01-01T00:00", "2026-01-01T00:01"),
    ("*/15 * * * *", "2026-01-01T00:07:30", "2026-01-01T00:15"),
    ("0 9-17/4 * * mon-fri", "2026-01-02T14:00", "2026-01-02T17:00"),
    ("0 9-17/4 * * mon-fri", "2026-01-02T18:00", "2026-01-05T09:00"),
    ("5,10 0 1 jan,jul *", "2026-01-01T00:07", "2026-01-01T00:10"),
    ("5,10 0 1 jan,jul *", "2026-01-01T00:10", "2026-07-01T00:05"),
    ("0 0 29 2 *", "2026-03-01T00:00", "2028-02-29T00:00"),
    ("0 0 13 * 5", "2026-01-01T00:00", "2026-01-02T00:00"),
    ("@daily", "2026-01-01T00:00", "2026-01-02T00:00"),
    ("@hourly", "2026-01-01T00:59", "2026-01-01T01:00"),
    ("0 0 * * 7", "2026-01-01T00:00", "2026-01-04T00:00"),
    ("10/20 * * * *", "2026-01-01T00:00", "2026-01-01T00:10"),
]


@pytest.mark.parametrize(("text", "now", "want"), TABLE)
def test_next_time_of_a_schedule(text: str, now: str, want: str) -> None:
    assert parse_schedule(text).next_after(when(now)) == when(want)


def test_impossible_date_has_no_next_time() -> None:
    assert parse_schedule("0 0 31 2 *").next_after(when("2026-01-01T00:00")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("* * * *", "expected five fields"),
        ("60 * * * *", "schedule: minute: '60' is not within 0-59"),
        ("* 5-3 * * *", "hour"),
        ("* * * foo *", "month: cannot parse 'foo'"),
        ("*/0 * * * *", "minute"),
        ("@never", "expected five fields"),
    ],
)
def test_wrong_schedules_name_the_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_schedule(text)


def test_daylight_saving() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    spring = parse_schedule("30 2 * * *").next_after(when("2026-03-28T12:00", berlin))
    assert spring == when("2026-03-30T02:30", berlin)
    autumn = parse_schedule("30 2 * * *").next_after(when("2026-10-24T12:00", berlin))
    again = parse_schedule("30 2 * * *").next_after(present(autumn))
    assert (present(autumn).date().day, present(again).date().day) == (25, 26)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["*/7 * * * *", "3 4 * * 1", "0 */5 2 * *", "59 23 31 12 *", "1 1 1 * 3"]),
    st.integers(1_577_836_800, 1_893_456_000),
)
def test_next_times_grow_and_skip_no_match(text: str, stamp: int) -> None:
    now = datetime.datetime.fromtimestamp(stamp, datetime.UTC)
    schedule = parse_schedule(text)
    following = present(schedule.next_after(now))
    assert following > now
    between = following - datetime.timedelta(minutes=1)
    if between > now:
        assert schedule.next_after(between - datetime.timedelta(seconds=1)) == following


NOW = when("2026-01-01T12:00:30")


def cron(status: dict[str, Any] | None = None, created: str = "2026-01-01T11:30:10Z", **spec: Any) -> CronJob:
    body = {
        "metadata": {"name": "c", "uid": "C", "namespace": "d", "creationTimestamp": created},
        "spec": {"schedule": "*/10 * * * *", "jobTemplate": {"spec": {"x": 1}}} | spec,
        "status": status or {},
    }
    return msgspec.convert(body, CronJob)


def job(name: str, kind: str | None = None, start: str = "2026-01-01T11:00:00Z") -> Job:
    conditions = [{"type": kind, "status": "True"}] if kind else []
    return msgspec.convert({"metadata": {"name": name}, "status": {"conditions": conditions, "startTime": start}}, Job)


def chosen(item: CronJob, jobs: Sequence[Job] = ()) -> CronJobPlan:
    return plan(item, parse_schedule(item.spec.schedule), jobs, NOW)


def test_only_the_last_missed_time_starts() -> None:
    result = chosen(cron())
    assert (result.start, result.again_s) == (when("2026-01-01T12:00"), 570.0)
    assert chosen(cron({"lastScheduleTime": "2026-01-01T12:00:00Z"})).start is None
    assert chosen(cron(created="2020-01-01T00:00:00Z")).start == when("2026-01-01T12:00")
    rare = cron(created="2020-01-01T00:00:00Z", schedule="0 0 1 3 *")
    assert chosen(rare).start == when("2025-03-01T00:00")


def test_starting_deadline_drops_older_times() -> None:
    assert chosen(cron(startingDeadlineSeconds=10)).start is None
    assert chosen(cron(startingDeadlineSeconds=60)).start == when("2026-01-01T12:00")


def test_suspended_cron_job_starts_nothing() -> None:
    result = chosen(cron(suspend=True))
    assert (result.start, result.again_s) == (None, None)


def test_concurrency_policies() -> None:
    running = [job("r")]
    assert chosen(cron(), running).start is not None
    assert chosen(cron(concurrencyPolicy="Forbid"), running).start is None
    replaced = chosen(cron(concurrencyPolicy="Replace"), running)
    assert (replaced.start is not None, replaced.delete) == (True, tuple(running))


def test_jobs_beyond_the_history_limits_are_deleted() -> None:
    jobs = [job(f"s{n}", "Complete", f"2026-01-01T1{n}:00:00Z") for n in range(5)]
    jobs += [job("f0", "Failed", "2026-01-01T01:00:00Z"), job("f1", "Failed")]
    names = [item.metadata.name for item in chosen(cron(), jobs).delete]
    assert names == ["s0", "s1", "f0"]


def test_job_body() -> None:
    body = job_body(cron(), when("2026-01-01T12:00"))
    assert body["metadata"]["name"] == "c-29454480"
    assert body["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] == "2026-01-01T12:00:00Z"
    assert body["spec"] == {"x": 1}
