"""Cells of a Pod that :mod:`test_columns` does not show: restarts, readiness gates, unreachable nodes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from podwire.embedded.apiserver.tables.pods import COLUMNS, pod_cells, replicas

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def status(name: str, restarts: int, ended: str | None = None) -> dict[str, Any]:
    last = {"lastState": {"terminated": {"exitCode": 1, "finishedAt": ended}}} if ended else {}
    return {"name": name, "ready": True, "restartCount": restarts, "state": {"running": {}}, **last}


def cells(spec: dict[str, Any], result: dict[str, Any], **meta: Any) -> dict[str, Any]:
    shown = pod_cells({"metadata": {"name": "p", **meta}, "spec": spec, "status": result}, NOW)
    return dict(zip((column.name for column in COLUMNS), shown, strict=True))


TWO = {"containers": [{"name": "a"}, {"name": "b"}]}


@pytest.mark.parametrize(
    ("statuses", "want"),
    [
        ([status("a", 0), status("b", 0)], "0"),
        ([status("a", 1), status("b", 2)], "3"),
        ([status("a", 1, "2026-01-02T11:00:00Z"), status("b", 2, "2026-01-02T11:59:00Z")], "3 (60s ago)"),
        ([status("a", 0), status("b", 1, "not a time")], "1"),
    ],
)
def test_restarts_show_the_time_of_the_last(statuses: list[dict[str, Any]], want: str) -> None:
    assert cells(TWO, {"phase": "Running", "containerStatuses": statuses})["Restarts"] == want


def test_init_containers_count_only_while_they_run() -> None:
    spec = {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}
    waiting = {"name": "i", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    result = cells(spec, {"phase": "Pending", "initContainerStatuses": [waiting]})
    assert (result["Status"], result["Restarts"]) == ("Init:CrashLoopBackOff", "4")
    done = {"name": "i", "restartCount": 4, "state": {"terminated": {"exitCode": 0}}}
    both = {"phase": "Running", "initContainerStatuses": [done], "containerStatuses": [status("a", 1)]}
    assert (cells(spec, both)["Status"], cells(spec, both)["Restarts"]) == ("Running", "1")


def test_readiness_gates() -> None:
    gates = {**TWO, "readinessGates": [{"conditionType": "x"}, {"conditionType": "y"}]}
    result = cells(gates, {"conditions": [{"type": "x", "status": "True"}, {"type": "y", "status": "False"}]})
    assert result["Readiness Gates"] == "1/2"


def test_state_of_a_deleted_pod_on_a_lost_node() -> None:
    gone = {"deletionTimestamp": "2026-01-02T11:00:00Z"}
    assert cells(TWO, {"phase": "Running", "reason": "NodeLost"}, **gone)["Status"] == "Unknown"
    assert cells(TWO, {"phase": "Succeeded"}, **gone)["Status"] == "Succeeded"


def test_replicas() -> None:
    assert replicas({"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}) == "1/3"
    assert replicas({}) == "0/0"
