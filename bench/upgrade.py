"""`podwire upgrade plan` of a fleet: 1,000 nodes with the layout of kubeadm, in the embedded API server.

The cluster has 3 API servers, 1,000 nodes in 3 zones with pods of kube-proxy and Flannel, and 10,000 pods of 500
Deployments with a PodDisruptionBudget each. "Command" is the whole process: start, about 50 requests over TLS, plan,
JSON. "Plan alone" is the pure part, "waves alone" the schedule of the nodes in it.

    python -m bench.upgrade [--quick]
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.alone import ROOT, run_alone
from bench.api import PORT, Client, running
from bench.table import Row
from tests.cases.upgrade_clusters import kubeadm_nodes, objects, pod

from podwire.kube.client import Client as ApiClient
from podwire.kube.config import load_kubeconfig
from podwire.runtime.clock import SystemClock
from podwire.upgrade.inventory.read import read_inventory
from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.steps import wave_nodes
from podwire.upgrade.plan.targets import Targets, parse_images
from podwire.upgrade.plan.values import parse_plan
from podwire.upgrade.plan.versions import parse_target
from podwire.upgrade.plan.waves import WaveOptions, schedule

Json = dict[str, Any]
FLANNEL = "flannel=ghcr.io/flannel-io/flannel:v0.27.0"
CONNECTIONS = 16
AIM_S = 5.0

PATHS = {
    "Node": "/api/v1/nodes", "Namespace": "/api/v1/namespaces", "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps", "Service": "/api/v1/namespaces/{}/services",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets", "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}  # fmt: skip


def fleet(workers: int) -> list[Json]:
    """The objects of a cluster with 3 nodes of the control plane and ``workers`` others."""
    made = [*objects("kubeadm"), *kubeadm_nodes(control_planes=3, workers=workers)]
    for number in range(workers // 2):
        name, labels = f"app-{number}", {"app": f"app-{number}"}
        container = {"name": "main", "image": "registry.example/app:1"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec: Json = {"replicas": 20, "selector": {"matchLabels": labels}, "template": template}
        meta = {"name": name, "namespace": "shop"}
        made.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
        limits = {"maxUnavailable": 2, "selector": {"matchLabels": labels}}
        made.append({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": limits})
        for replica in range(20):
            on = f"worker-{(number * 20 + replica) % workers + 1}"
            made.append(pod(f"{name}-{replica}", on, "registry.example/app:1", labels, namespace="shop"))
    return made


async def load(directory: Path, items: list[Json]) -> None:
    """Creates the objects, and writes the status of those that controllers would fill in."""
    clients = [await Client.connect(directory) for _ in range(CONNECTIONS)]
    for name in ("shop", "kube-flannel"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await clients[0].request("POST", "/api/v1/namespaces", json.dumps(body).encode())
    queue = [item for item in items if item["kind"] != "Service"]

    async def work(client: Client) -> None:
        while queue:
            item = queue.pop()
            path = PATHS[item["kind"]].format(item["metadata"].get("namespace", ""))
            await client.request("POST", path, json.dumps(item).encode())
            if item["kind"] in ("PodDisruptionBudget", "Pod"):
                status = item.get("status") or {"disruptionsAllowed": 2}
                body = {**item, "status": status}
                await client.request("PUT", f"{path}/{item['metadata']['name']}/status", json.dumps(body).encode())

    await asyncio.gather(*map(work, clients))
    for client in clients:
        client.writer.close()


def kubeconfig(directory: Path) -> Path:
    """A kubeconfig of the administrator."""
    user = {"client-certificate": str(directory / "admin.crt"), "client-key": str(directory / "admin.key")}
    server = {"server": f"https://127.0.0.1:{PORT}", "certificate-authority": str(directory / "ca.crt")}
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": server}], "users": [{"name": "bench", "user": user}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    }  # fmt: skip
    path = directory / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


def children_s() -> float:
    """Seconds of processor time that ended children used; the server still runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def timed(count: int, work: Callable[[], Awaitable[object]]) -> tuple[float, ...]:
    """Seconds of each run."""
    values = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        values.append(time.perf_counter() - began)
    return tuple(values)


async def measure(quick: bool) -> list[Row]:
    """All rows."""
    workers, count = (100, 1) if quick else (997, 5)
    targets = Targets(version=parse_target("1.36.1", "--to"), images=parse_images([FLANNEL], "--image"))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with running(directory):
            await load(directory, fleet(workers))
            config = kubeconfig(directory)
            client = ApiClient(load_kubeconfig(config), SystemClock())
            inventory = await read_inventory(client)
            assert len(inventory.nodes) == workers + 3 and len(inventory.pods) > 10 * workers
            used: list[float] = []
            nodes, allowed = wave_nodes(inventory, [node.name for node in inventory.nodes])

            async def whole() -> None:
                command = [
                    sys.executable, "-m", "podwire.cli.main", "upgrade", "plan", "--kubeconfig", str(config),
                    "--to", "1.36.1", "--image", FLANNEL, "-o", "json",
                ]  # fmt: skip
                before = children_s()
                process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
                output, _ = await process.communicate()
                used.append(children_s() - before)
                plan = parse_plan(output, "plan")
                steps = [step for step in plan.steps if step.scope == "nodes"]
                assert all(sum(len(wave.nodes) for wave in step.waves) == workers + 3 for step in steps) and steps

            async def alone() -> None:
                make_plan(inventory, targets)

            async def waves() -> None:
                schedule(nodes, allowed, WaveOptions())

            async def read() -> None:
                await read_inventory(client)

            rows = [
                Row(f"{workers + 3:,} nodes: command, with start and JSON", "s", await timed(count, whole), aim=AIM_S),
                Row(f"{workers + 3:,} nodes: command, processor time", "s", tuple(used)),
                Row(f"{workers + 3:,} nodes: read from the API", "s", await timed(count, read)),
                Row(f"{workers + 3:,} nodes: plan alone", "s", await timed(count, alone)),
                Row(f"{workers + 3:,} nodes: waves alone", "s", await timed(count, waves)),
            ]
            await client.close()
    return rows


if __name__ == "__main__":
    run_alone("upgrade", __doc__, lambda quick: asyncio.run(measure(quick)))
