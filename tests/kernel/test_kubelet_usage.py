"""What the kubelet measures of real containers, and the limits that it holds them to."""

import http.client
import json
import re
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.kubelet_node import Node, create, eventually, ready, run, running_node, status

from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import EVENTS, PODS, Json

BUSY = ["sh", "-c", "while :; do :; done"]
EATER = ["python3", "-c", "import time; held = bytearray(200 << 20); time.sleep(1000)"]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node() as created:
        yield created


def read(node: Node, path: str) -> bytes:
    """A page of the kubelet, read with the API server's certificate."""
    context = ssl.create_default_context(cafile=str(node.base / "ca.crt"))
    context.load_cert_chain(node.base / "admin.crt", node.base / "admin.key")
    connection = http.client.HTTPSConnection("127.0.0.1", 10250, context=context, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def container(name: str, command: list[str], **limits: str) -> Json:
    return {"name": name, "image": "busybox", "command": command, "resources": {"limits": limits}}


def seconds(text: str, pod: str) -> float:
    result = re.search(rf'^pod_cpu_usage_seconds_total\{{namespace="default",pod="{pod}"\}} (\S+) \d+$', text, re.M)
    return float(result[1]) if result else 0.0


def test_pages_show_cpu_and_memory_of_containers(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "busy", container("loop", BUSY, cpu="1"), container("idle", ["sleep", "1000"]))
        await ready(client, "busy")

        async def used() -> bool:
            return seconds(read(node, "/metrics/resource").decode(), "busy") > 0.3

        await eventually(used)
        summary: dict[str, Any] = json.loads(read(node, "/stats/summary"))
        pod = next(p for p in summary["pods"] if p["podRef"]["name"] == "busy")
        loop, idle = sorted(pod["containers"], key=lambda c: str(c["name"]), reverse=True)
        assert loop["cpu"]["usageCoreNanoSeconds"] > 3 * idle["cpu"]["usageCoreNanoSeconds"]
        assert 0 < loop["memory"]["workingSetBytes"] < 64 << 20
        assert summary["node"]["cpu"]["usageCoreNanoSeconds"] >= loop["cpu"]["usageCoreNanoSeconds"]
        assert 'container_spec_cpu_quota{container="loop"' in read(node, "/metrics/cadvisor").decode()
        await client.delete(PODS, "busy", "default", grace_period_s=0)

    run(node, body)


def test_a_container_above_its_memory_limit_is_killed(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "eater", container("eat", EATER, memory="64Mi"), restartPolicy="Never")

        async def failed() -> bool:
            return (await status(client, "eater")).get("phase") == "Failed"

        await eventually(failed)
        ended = (await status(client, "eater"))["containerStatuses"][0]["state"]["terminated"]
        assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)

        async def told() -> bool:
            events = (await client.list(EVENTS, "default")).items
            return any(e["reason"] == "OOMKilling" and e["involvedObject"]["name"] == "eater" for e in events)

        await eventually(told)

    run(node, body)


def test_a_container_gets_no_more_cpu_than_its_limit(node: Node) -> None:
    """The kernel throttles the container: it counts periods in which the container used its share up."""

    async def body(client: Client) -> None:
        await create(client, "slow", container("loop", BUSY, cpu="100m"))
        pod = await ready(client, "slow")
        run_id = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("podwire://")
        group = node.groups().inside(pod["metadata"]["uid"]).inside(run_id)
        folder = group.unified if "cpu" in group.controllers else group.legacy["cpu"]

        async def throttled() -> bool:
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(counts["nr_throttled"]) >= 3

        await eventually(throttled)
        await client.delete(PODS, "slow", "default", grace_period_s=0)

        async def removed() -> bool:
            return not folder.exists()

        await eventually(removed)

    run(node, body)


def condition(shown: Json, kind: str) -> Json:
    result: Json = next((c for c in shown.get("conditions", ()) if c["type"] == kind), {})
    return result


def test_a_resize_changes_the_limit_of_a_running_container(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "grows", container("loop", ["sleep", "1000"], cpu="100m", memory="64Mi"))
        pod = await ready(client, "grows")
        run_id = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("podwire://")
        group = node.groups().inside(pod["metadata"]["uid"]).inside(run_id)
        unified = "cpu" in group.controllers
        file = group.unified / "cpu.max" if unified else group.legacy["cpu"] / "cpu.cfs_quota_us"
        assert file.read_text().split()[0] == "10000"

        async def resize(cpu: str) -> None:
            amounts = {"cpu": cpu, "memory": "64Mi"}
            patch = {"spec": {"containers": [{"name": "loop", "resources": {"limits": amounts, "requests": amounts}}]}}
            await client.patch(
                PODS, "grows", patch, "default", subresource="resize", patch_type=STRATEGIC_MERGE_PATCH
            )  # fmt: skip

        async def shown(cpu: str) -> bool:
            container_status = (await status(client, "grows"))["containerStatuses"][0]
            return bool(
                container_status["resources"]["limits"]["cpu"] == container_status["allocatedResources"]["cpu"] == cpu
            )

        await resize("300m")
        await eventually(lambda: shown("300m"))
        assert file.read_text().split()[0] == "30000"

        await resize("1000")

        async def refused() -> bool:
            return condition(await status(client, "grows"), "PodResizePending").get("reason") == "Infeasible"

        await eventually(refused)
        assert await shown("300m")
        assert file.read_text().split()[0] == "30000"

        await resize("200m")

        async def settled() -> bool:
            return await shown("200m") and not condition(await status(client, "grows"), "PodResizePending")

        await eventually(settled)
        after = await status(client, "grows")
        assert after["containerStatuses"][0]["restartCount"] == 0

        async def told() -> bool:
            events = (await client.list(EVENTS, "default")).items
            results = [
                e["reason"] for e in events if e["involvedObject"]["name"] == "grows" and "Resize" in e["reason"]
            ]
            return sorted(results) == [*["ResizeCompleted"] * 2, "ResizeInfeasible", *["ResizeStarted"] * 2]

        await eventually(told)
        await client.delete(PODS, "grows", "default", grace_period_s=0)

    run(node, body)


def test_a_pod_that_does_not_fit_is_refused(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "large", container("c", ["sleep", "1000"], cpu="1000"))

        async def refused() -> bool:
            return (await status(client, "large")).get("phase") == "Failed"

        await eventually(refused)
        shown = await status(client, "large")
        assert shown["reason"] == "OutOfcpu"
        assert shown["message"].startswith(
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000"
        )

    run(node, body)


def test_an_image_volume_is_empty_and_an_event_says_so(node: Node) -> None:
    async def body(client: Client) -> None:
        volume = {"name": "m", "image": {"reference": "registry.example/models:1"}}
        reader = container("c", ["sh", "-c", "ls /m; ! touch /m/file"])
        reader["volumeMounts"] = [{"name": "m", "mountPath": "/m"}]
        await create(client, "models", reader, volumes=[volume], restartPolicy="Never")

        async def done() -> bool:
            return (await status(client, "models")).get("phase") == "Succeeded"

        async def told() -> bool:
            events = (await client.list(EVENTS, "default")).items
            return any(
                e["reason"] == "ImageVolumeEmpty" and "registry.example/models:1" in e["message"] for e in events
            )

        await eventually(done)
        await eventually(told)

    run(node, body)
