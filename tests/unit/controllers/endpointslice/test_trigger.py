"""The time of the change that a write of slices is about."""

from podwire.controllers.endpointslice.trigger import TriggerTimes
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.pod import Pod, PodStatus
from podwire.model.service import Service

SERVICE = Service(metadata=ObjectMeta(name="svc", namespace="ns", creation_timestamp="2026-01-01T00:00:00Z"))


def pod(uid: str, second: int, kind: str = "Ready") -> Pod:
    condition = Condition(type=kind, last_transition_time=f"2026-01-01T00:00:{second:02}Z")
    return Pod(metadata=ObjectMeta(name=uid, uid=uid), status=PodStatus(conditions=(condition,)))


class Bench:
    def __init__(self) -> None:
        self.times = TriggerTimes()

    def write(self, *pods: Pod, has_slices: bool = True) -> str:
        result = self.times.since("ns/svc", SERVICE, pods, has_slices=has_slices)
        self.times.record("ns/svc", pods)
        return result.removeprefix("2026-01-01T00:00:")


def test_a_new_service_counts_from_its_creation() -> None:
    assert Bench().write(pod("a", 5), has_slices=False) == "00Z"


def test_changes_before_the_start_have_no_trigger_time() -> None:
    bench = Bench()
    assert bench.write(pod("a", 5)) == ""
    assert bench.write(pod("a", 6)) == "06Z"


def test_the_earliest_change_since_the_last_write_counts() -> None:
    bench = Bench()
    bench.write(pod("a", 5), pod("b", 5), has_slices=False)
    assert bench.write(pod("a", 9), pod("b", 5), pod("c", 7)) == "07Z"
    assert bench.write(pod("a", 9), pod("b", 5), pod("c", 7)) == ""
    assert bench.write(pod("b", 5), pod("c", 7)) == "", "a pod that went has no time"
    assert bench.write(pod("a", 9), pod("b", 5), pod("c", 7)) == "09Z"


def test_only_readiness_counts() -> None:
    bench = Bench()
    bench.write(pod("a", 5), has_slices=False)
    assert bench.write(pod("a", 5), pod("b", 8, kind="PodScheduled")) == ""


def test_a_write_that_failed_keeps_its_time() -> None:
    bench = Bench()
    bench.write(pod("a", 5), has_slices=False)
    assert bench.times.since("ns/svc", SERVICE, [pod("a", 6)], has_slices=True).endswith("06Z")
    assert bench.write(pod("a", 6)) == "06Z"


def test_a_service_that_is_made_again_is_new() -> None:
    bench = Bench()
    bench.write(pod("a", 5), has_slices=False)
    bench.times.forget("ns/svc")
    assert bench.write(pod("a", 5), has_slices=False) == "00Z"
