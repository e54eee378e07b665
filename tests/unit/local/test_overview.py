"""The state of a local cluster, from the records of its processes."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from podwire.local.briefs import brief
from podwire.local.overview import as_text, read_status
from podwire.local.topology import Topology
from podwire.runtime.childrecord import Record
from podwire.runtime.process import start_ticks


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    result = Topology(name="shown", index=0, segment_count=1, run=str(tmp_path / "run"), state=str(tmp_path / "state"))
    (Path(result.run) / "processes").mkdir(parents=True)
    return result


def record(topology: Topology, *names: str, running: bool = True) -> None:
    pid = os.getpid()
    text = msgspec.json.encode(Record(pid, start_ticks(pid) if running else 1, ""))
    for name in names:
        (Path(topology.run) / "processes" / f"{name}.json").write_bytes(text)


def problems(topology: Topology) -> tuple[str, ...]:
    return asyncio.run(read_status(topology)).problems


def test_a_cluster_without_an_api_server_has_a_problem(topology: Topology) -> None:
    record(topology, "keeper", "supervisor")
    assert problems(topology) == ("the API server does not answer: the cluster was not completely created",)


def test_an_ended_process_is_a_problem_and_who_restarts_it(topology: Topology) -> None:
    record(topology, "keeper", "supervisor", "agent-node-1")
    record(topology, "kubelet-node-1", running=False)
    assert problems(topology)[0] == "kubelet-node-1 has ended; the supervisor starts it again"
    record(topology, "supervisor", running=False)
    assert "supervisor has ended; the keeper starts it again" in problems(topology)


def test_a_dead_supervisor_leads_to_up(topology: Topology) -> None:
    record(topology, "keeper", "supervisor", "kubelet-node-1", running=False)
    assert problems(topology)[0] == (
        "the supervisor has ended, so nothing starts processes again that end; "
        "these have ended: kubelet-node-1; run `podwire up --name shown`"
    )


def test_text_shows_problems_and_the_kubeconfig(topology: Topology) -> None:
    record(topology, "keeper", "supervisor")
    record(topology, "agent-node-1", running=False)
    lines = as_text(asyncio.run(read_status(topology))).splitlines()
    assert [line.split()[::2] for line in lines[1:4]] == [
        ["keeper", "running"], ["supervisor", "running"], ["agent-node-1", "ended"],
    ]  # fmt: skip
    assert any(line.startswith("problem: agent-node-1 has ended") for line in lines)
    assert lines[-1] == f"export KUBECONFIG={topology.state}/credentials/admin.kubeconfig"


def test_of_many_processes_only_ended_ones_have_a_row(topology: Topology) -> None:
    record(topology, "keeper", "supervisor", *(f"agent-node-{n}" for n in range(30)))
    record(topology, "agent-node-7", running=False)
    lines = as_text(asyncio.run(read_status(topology))).splitlines()
    assert lines[0] == "32 processes, 1 of them ended"
    assert [line.split()[0] for line in lines[1:3]] == ["PROCESS", "agent-node-7"]


def test_the_list_says_running_degraded_and_stopped(topology: Topology) -> None:
    record(topology, "keeper", "supervisor")
    assert brief(topology).cells()[:4] == ("shown", "running", "0", "-")
    record(topology, "supervisor", running=False)
    assert brief(topology).state == "degraded"
    record(topology, "keeper", running=False)
    assert brief(topology).state == "stopped"
