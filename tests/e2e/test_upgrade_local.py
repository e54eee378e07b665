"""``podwire up --version`` of an earlier commit, the upgrade to this build under numbered flows, and the way back."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import done, identities, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually, podwire
from tests.earlier_builds import COMMITS, wheel_or_skip

from podwire.flows import proof
from podwire.local import builds
from podwire.local.rollout.run import folder_of

FAST = ("--pause", "0", "--interval-ms", "60")
WITHOUT_PAUSES = (*FAST, "--canary-pause", "0")


@pytest.fixture
def cluster(commit: str) -> Iterator[Cluster]:
    """Two nodes of an earlier build, and a pod on each."""
    built = str(wheel_or_skip(commit))
    with running(own_name("upgrade"), "--nodes", "2", "--version", built) as started:
        started.apply(server("one", "node-1") + server("two", "node-2"))
        started.ready("one", "two")
        yield started


def upgrade(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    finished = run("upgrade", "local", *arguments, "--name", cluster.name, timeout=400)
    assert finished.returncode == status, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def versions(cluster: Cluster) -> set[str]:
    """The builds of all processes."""
    state: Any = json.loads(done("status", "--name", cluster.name, "-o", "json"))
    return {process["version"] for process in state["processes"]}


def nothing_lost(cluster: Cluster, least: int) -> None:
    file = folder_of(topology(cluster)) / "proof.json"
    measured = proof.parse_json(file.read_bytes(), str(file))
    lost, sent, leaked, denied = proof.counts(measured)
    assert (lost, leaked) == (0, 0), done("upgrade", "report", str(file))
    assert sent > least and denied > 0
    assert {change.node for change in measured.changes} == {"node-1", "node-2"}
    assert all(flow.broken == 0 for flow in measured.flows), "connections stay"
    assert done("upgrade", "report", "--name", cluster.name, "-o", "svg").startswith("<svg ")


def killed_at(cluster: Cluster, step: str) -> None:
    """Begins an upgrade and kills it at a step."""
    command = [*podwire(), "upgrade", "local", "apply", *WITHOUT_PAUSES, "--name", cluster.name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert any(line.strip() == step for line in output), f"no line {step!r}"
        assert "is being changed by another podwire process" in upgrade(cluster, "apply", status=1)
        process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("commit", COMMITS[:1])
def test_a_killed_upgrade_continues_and_loses_no_message(cluster: Cluster) -> None:
    old, new = builds.recall(Path(topology(cluster).state)), builds.own()
    assert old is not None and versions(cluster) == {old.label}
    before = identities(cluster)
    killed_at(cluster, "agent-node-1")
    assert "continuing an upgrade that was interrupted" in upgrade(cluster, "apply", *WITHOUT_PAUSES)
    assert versions(cluster) == {new.label}
    nothing_lost(cluster, 3000)
    assert eventually(lambda: identities(cluster)) == before


@pytest.mark.parametrize("commit", COMMITS[1:])
def test_an_upgrade_and_its_way_back_lose_no_message(cluster: Cluster) -> None:
    old, new = builds.recall(Path(topology(cluster).state)), builds.own()
    assert old is not None
    before = identities(cluster)
    upgrade(cluster, "apply", *WITHOUT_PAUSES)
    assert versions(cluster) == {new.label}
    nothing_lost(cluster, 3000)
    upgrade(cluster, "rollback", *FAST)
    assert versions(cluster) == {old.label}
    assert f"{old.label} -> {new.label}: rolled back" in upgrade(cluster, "status")
    nothing_lost(cluster, 1000)
    assert eventually(lambda: identities(cluster)) == before
    assert Path(topology(cluster).run, "builds.json").read_bytes() == b"{}"
