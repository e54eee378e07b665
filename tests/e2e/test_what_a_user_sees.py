"""The output of ``podwire up``, a second ``podwire up``, and the commands of the README."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import own_name, run
from tests.e2e.driver import Cluster, podwire

NAME = own_name("sees")
ROOT = Path(__file__).parents[2]
SHOP = ("--nodes", "3", "-f", str(ROOT / "examples/shop"), "--probe")
VERSIONED = "namespaces,deployments,statefulsets,daemonsets,services,configmaps,secrets,poddisruptionbudgets"


class Shop:
    """A cluster with the example application, and the output of ``up``."""

    def __init__(self, output: str) -> None:
        self.said = output
        path = run("kubeconfig", "--name", NAME).stdout.strip()
        self.cluster = Cluster(NAME, path)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    try:
        done = run("up", "--name", NAME, *SHOP)
        assert done.returncode == 0, done.stdout + done.stderr
        yield Shop(done.stdout)
    finally:
        run("down", "--name", NAME)


def table(text: str, head: str) -> list[list[str]]:
    """The rows under a heading, up to the next empty line, as words."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        rows.append(line.split())
    return rows


def test_it_ends_with_nodes_data_planes_kubeconfig_and_connectivity(shop: Shop) -> None:
    nodes = table(shop.said, "NODE ")
    assert [row[:2] for row in nodes] == [[f"node-{n}", "Ready"] for n in (1, 2, 3)]
    cidrs = {node["metadata"]["name"]: node["spec"]["podCIDR"] for node in shop.cluster.get("nodes")["items"]}
    assert {row[0]: row[3] for row in nodes} == cidrs
    assert [row[5:7] for row in nodes] == [["vxlan", "nftables"]] * 3
    assert f"export KUBECONFIG={shop.cluster.kubeconfig}" in shop.said.splitlines()
    end = shop.said[shop.said.index("export KUBECONFIG") :]
    parts = ("pods to pods", "pods to services by name", "host to nodeports")
    at = [end.lower().index(part) for part in parts]
    assert at == sorted(at)
    pods = end[: at[1]]
    assert all(f"node-{n}" in pods for n in (1, 2, 3)), "within nodes and across them"
    assert "shop/web 30080/tcp" in end[at[2] :].lower()
    summary = re.fullmatch(r"(\d+) of (\d+) as expected, median [\d.]+ ms", end.strip().splitlines()[-1])
    assert summary is not None and summary[1] == summary[2] and int(summary[1]) > 100


def test_up_prints_its_progress(shop: Shop) -> None:
    before = shop.said[: shop.said.index("NODE ")]
    output = [word for word in ("credentials", "fabric", "API server", "applied", "ready") if word in before]
    assert output == ["credentials", "fabric", "API server", "applied", "ready"]
    assert [before.index(word) for word in output] == sorted(before.index(word) for word in output)


def versions(cluster: Cluster) -> dict[str, Any]:
    """The uid of each pod, and the generation of each applied object."""
    items = cluster.get(VERSIONED, "-A")["items"]
    pods = cluster.get("pods", "-A")["items"]
    result: dict[str, Any] = {
        f"{item['kind']}/{item['metadata'].get('namespace')}/{item['metadata']['name']}": (
            item["metadata"]["uid"], item["metadata"].get("generation"), item.get("spec"), item.get("data"),
        )
        for item in items
    }  # fmt: skip
    result["pods"] = sorted(
        (
            pod["metadata"]["uid"],
            pod["status"]["podIP"],
            sum(s["restartCount"] for s in pod["status"]["containerStatuses"]),
        )
        for pod in pods
    )
    return result


def test_a_second_one_changes_nothing(shop: Shop) -> None:
    before = versions(shop.cluster)
    done = run("up", "--name", NAME, *SHOP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert versions(shop.cluster) == before


def test_the_api_listens_on_loopback_and_on_the_fabric_alone(shop: Shop) -> None:
    server = shop.cluster.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    port = int(server.rpartition(":")[2])
    assert server == f"https://127.0.0.1:{port}"
    shown = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    pid = re.search(r"^apiserver +(\d+)", shop.said, re.MULTILINE)
    assert pid is not None
    ours = {line.split()[3] for line in shown.splitlines() if f"pid={pid[1]}," in line}
    fabric = {address for address in ours if re.fullmatch(r"10\.89\.\d+\.1:6443", address)}
    assert ours - fabric == {f"127.0.0.1:{port}"} and len(fabric) == 1
    for address in fabric:
        host, _, number = address.partition(":")
        with socket.create_connection((host, int(number)), timeout=20):
            pass


def test_the_commands_of_the_readme(shop: Shop) -> None:
    """The block under "Use" runs unchanged except for the name of the cluster; its last command removes the cluster."""
    text = (ROOT / "README.md").read_text()
    section = text[text.index("\n## Use") : text.index("### Images")]
    commands = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    assert any(line.startswith("podwire down") for line in commands) and len(commands) > 8
    script = "\n".join(
        [
            "set -euo pipefail",
            f'podwire() {{ local verb=$1 name="--name {NAME}"; shift; [ "$verb" != list ] || name=',
            f'{" ".join(podwire())} "$verb" $name "$@"; }}',
            *(line for line in commands if line.strip()),
        ]
    )
    environment = {**os.environ, "HOME": str(Path(shop.cluster.kubeconfig).parent)}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=400, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "node-5" in done.stdout and "hostgw" in done.stdout
    assert run("status", "--name", NAME).returncode == 1
