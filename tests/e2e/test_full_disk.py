"""With a full disk, writes get a clear error, reads and the network work, and no data is lost."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import done, flows, identities, own_name, running, server, topology
from tests.e2e.driver import Cluster, eventually

NAME = own_name("full")
SIZE = "24m"
TEXT = "x" * 100_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system for the test."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "podwire-test", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def cluster_on(disk: Path) -> Iterator[Cluster]:
    manifest = server("one", "node-1") + server("two", "node-2")
    with running(NAME, "--nodes", "2", "--state-dir", str(disk), stdin=manifest) as cluster:
        yield cluster


def fill(disk: Path) -> Path:
    """Fills the rest of the file system."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def write(cluster: Cluster, number: int) -> str:
    """Writes an object; returns the error of kubectl, empty when there is none."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c-{number}"}, "data": {"text": TEXT}}
    result = cluster.run(["kubectl", "create", "-f", "-"], stdin=json.dumps(body))
    return "" if result.returncode == 0 else result.stderr


def stored_names(cluster: Cluster) -> set[str]:
    result = cluster.get("configmaps")["items"]
    assert all(item["data"]["text"] == TEXT for item in result if item["metadata"]["name"].startswith("c-"))
    return {item["metadata"]["name"] for item in result} - {"kube-root-ca.crt"}


def test_a_full_disk_under_a_cluster(cluster_on: Cluster, disk: Path) -> None:
    cluster = cluster_on
    before = identities(cluster)
    acknowledged = {f"c-{n}" for n in range(3) if not write(cluster, n)}
    assert len(acknowledged) == 3
    with flows(cluster, [("one", "two"), ("two", "one")]) as both:
        ballast = fill(disk)
        refusal = ""
        for number in range(3, 60):
            refusal = write(cluster, number)
            if refusal:
                break
            acknowledged.add(f"c-{number}")
        assert "the write was not stored and nothing changed: database or disk is full" in refusal
        assert stored_names(cluster) == acknowledged
        assert identities(cluster) == before
        done("probe", "--name", NAME)
        done("status", "--name", NAME)
        # kill -9 on a full disk: what was acknowledged is there when it comes back.
        record = json.loads((Path(topology(cluster).run) / "processes/apiserver.json").read_text())
        os.kill(int(record["pid"]), signal.SIGKILL)
        eventually(lambda: cluster.run(["kubectl", "get", "--raw", "/readyz"]).returncode == 0)
        assert stored_names(cluster) == acknowledged
        ballast.unlink()
        eventually(lambda: not write(cluster, 1000))
        assert stored_names(cluster) == {*acknowledged, "c-1000"}
    assert [flow.problems for flow in both] == [[], []]
    cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=90s")
    cluster.apply(server("three", "node-1"))
    cluster.ready("three")
    done("probe", "--name", NAME)
    assert {name: result for name, result in identities(cluster).items() if name != "three"} == before
