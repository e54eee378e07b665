"""The kubelet with real namespaces and processes: pods start, answer, restart, stop, and leave nothing behind."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kernel.kubelet_node import (
    WEB,
    Node,
    ask,
    create,
    eventually,
    is_ready,
    logs,
    ready,
    run,
    running_node,
    status,
)

from podwire.errors import NotFound
from podwire.kernel import netns
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, EVENTS, PODS, Json


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node() as started:
        yield started


def test_pod_starts_answers_and_leaves_nothing_behind(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "web", WEB)
        pod = await ready(client, "web")
        address, uid = pod["status"]["podIP"], pod["metadata"]["uid"]
        output = ask(address, 80)
        assert (output["pod"], output["container"], output["node"]) == ("web", "web", "node-1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(3)
            probe.sendto(b"podwire-probe\n", (address, 53))
            assert json.loads(probe.recv(2000))["protocol"] == "UDP"
        record = node.record(uid)
        assert netns.exists(record.netns)
        await client.delete(PODS, "web", "default")

        async def gone() -> bool:
            return not (node.base / "state/pods" / uid).exists()

        await eventually(gone)
        with pytest.raises(NotFound):
            await client.get(PODS, "web", "default")
        assert not Path(record.netns).exists()
        assert not record.cgroup or not Path(record.cgroup).exists()
        arguments = f"K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={record.sandbox}"
        assert arguments in (node.base / "ipam/deleted").read_text()

    run(node, body)


SHOW = """
echo "A=$A IP=$IP"; cat /etc/resolv.conf; hostname; cat /conf/key; cat /etc/hosts | tail -1
ls /var/run/secrets/kubernetes.io/serviceaccount; echo x > /data/x && ls /data; touch /new-file; ls -d /new-file
echo problem > /dev/termination-log; exit 3
"""


def test_a_container_sees_its_environment_files_and_volumes(node: Node) -> None:
    async def body(client: Client) -> None:
        await client.create(CONFIGMAPS, {"metadata": {"name": "cm"}, "data": {"key": "value-1\n"}}, "default")
        show = {
            "name": "show", "image": "busybox", "command": ["sh", "-c", SHOW],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "key"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "volumeMounts": [{"name": "v", "mountPath": "/conf"}, {"name": "e", "mountPath": "/data"}],
        }  # fmt: skip
        volumes = [{"name": "v", "configMap": {"name": "cm"}}, {"name": "e", "emptyDir": {}}]
        await create(client, "show", show, volumes=volumes, restartPolicy="Never")

        async def failed() -> bool:
            return (await status(client, "show")).get("phase") == "Failed"

        await eventually(failed)
        shown = await status(client, "show")
        text = await logs(client, "show", "show")
        assert f"IP={shown['podIP']}" in text
        assert "A=value-1" in text
        assert "search default.svc.cluster.local svc.cluster.local cluster.local" in text
        assert "nameserver 10.96.0.10" in text
        assert "\nshow\n" in text
        assert "ca.crt\nnamespace\ntoken\nx\n/new-file\n" in text
        assert not Path("/new-file").exists()
        ended = shown["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "problem\n")

    run(node, body)


def test_init_containers_run_in_order_and_sidecars_stay(node: Node) -> None:
    async def body(client: Client) -> None:
        def write(name: str, **more: Any) -> Json:
            command = ["sh", "-c", f"echo {name} >> /d/order" + ("; sleep 1000" if more else "")]
            mounts = [{"name": "d", "mountPath": "/d"}]
            return {"name": name, "image": "busybox", "command": command, "volumeMounts": mounts, **more}

        last = write("main")
        last["command"][2] += "; cat /d/order; sleep 1000"
        inits = [write("one"), write("side", restartPolicy="Always"), write("two")]
        await create(client, "order", last, initContainers=inits, volumes=[{"name": "d", "emptyDir": {}}])
        pod = await ready(client, "order")
        states = {s["name"]: next(iter(s["state"])) for s in pod["status"]["initContainerStatuses"]}
        assert states == {"one": "terminated", "side": "running", "two": "terminated"}

        async def written() -> bool:
            return (await logs(client, "order", "main")).split() == ["one", "side", "two", "main"]

        await eventually(written)

    run(node, body)


def test_a_failing_liveness_probe_restarts_the_container(node: Node) -> None:
    async def body(client: Client) -> None:
        probe = {"exec": {"command": ["sh", "-c", "test ! -e /sick"]}, "periodSeconds": 1, "failureThreshold": 1}
        command = ["sh", "-c", "sleep 0.5; touch /sick; sleep 1000"]
        await create(client, "sick", {"name": "c", "image": "busybox", "command": command, "livenessProbe": probe},
                     terminationGracePeriodSeconds=0)  # fmt: skip

        async def restarted() -> bool:
            shown = (await status(client, "sick")).get("containerStatuses") or [{}]
            return bool(shown[0].get("restartCount", 0) >= 1)

        await eventually(restarted)

        async def told() -> bool:
            items = (await client.list(EVENTS, "default")).items
            reasons = {e["reason"] for e in items if e["involvedObject"]["name"] == "sick"}
            return {"Unhealthy", "Killing"} <= reasons

        await eventually(told)
        await client.delete(PODS, "sick", "default", grace_period_s=0)

    run(node, body)


def test_commands_keep_the_environment_after_a_kubelet_restart(node: Node) -> None:
    async def body(client: Client) -> None:
        probe = {"exec": {"command": ["sh", "-c", "echo $COLOR in $(pwd) >> /d/lines"]}, "periodSeconds": 1}
        await create(
            client, "keeper",
            {"name": "c", "image": "busybox", "command": ["sleep", "1000"], "env": [{"name": "COLOR", "value": "red"}],
             "workingDir": "/usr", "readinessProbe": probe, "volumeMounts": [{"name": "d", "mountPath": "/d"}]},
            volumes=[{"name": "d", "emptyDir": {}}],
        )  # fmt: skip
        pod = await ready(client, "keeper")
        written = node.base / f"state/pods/{pod['metadata']['uid']}/volumes/d/lines"
        node.kill_kubelet()
        count = len(written.read_text().splitlines())
        node.start_kubelet()

        async def probed() -> bool:
            return len(written.read_text().splitlines()) > count

        await eventually(probed)
        assert set(written.read_text().splitlines()) == {"red in /usr"}
        await client.delete(PODS, "keeper", "default", grace_period_s=0)

    run(node, body)


def test_kill_of_kubelet_container_and_shim(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "tough", WEB)
        before = await ready(client, "tough")
        uid, address = before["metadata"]["uid"], before["status"]["podIP"]
        first = before["status"]["containerStatuses"][0]

        node.kill_kubelet()
        assert ask(address, 80)["pod"] == "tough"
        node.start_kubelet()
        await asyncio.sleep(2.5)
        after = await status(client, "tough")
        assert is_ready(after)
        assert after["containerStatuses"][0]["containerID"] == first["containerID"]

        record = json.loads((node.base / f"state/pods/{uid}/containers/web.0.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)

        async def restarted() -> bool:
            shown = await status(client, "tough")
            return is_ready(shown) and shown["containerStatuses"][0]["restartCount"] == 1

        await eventually(restarted)
        shown = await status(client, "tough")
        assert shown["podIP"] == address
        assert shown["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
        assert ask(address, 80)["pod"] == "tough"

        old = node.record(uid)
        os.kill(old.shim_pid, signal.SIGKILL)

        async def renewed() -> bool:
            shown = await status(client, "tough")
            return is_ready(shown) and shown["podIP"] != address

        await eventually(renewed)
        assert ask((await status(client, "tough"))["podIP"], 80)["pod"] == "tough"
        assert not Path(old.netns).exists()

    run(node, body)


def test_pods_deleted_while_the_kubelet_is_stopped_are_removed(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "orphan", WEB)
        pod = await ready(client, "orphan")
        record = node.record(pod["metadata"]["uid"])
        node.kill_kubelet()
        await client.delete(PODS, "orphan", "default", grace_period_s=0)
        node.start_kubelet()

        async def gone() -> bool:
            return not Path(record.netns).exists() and not (node.base / "state/pods" / record.uid).exists()

        await eventually(gone)

    run(node, body)


def test_pre_stop_runs_before_sigterm_within_the_grace_period(node: Node) -> None:
    async def body(client: Client) -> None:
        trap = "trap 'echo term >> /out/log' TERM; while true; do sleep 0.05; done"
        container = {
            "name": "c", "image": "busybox", "command": ["sh", "-c", trap],
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo stop >> /out/log"]}}},
            "volumeMounts": [{"name": "o", "mountPath": "/out"}],
        }  # fmt: skip
        out = node.base / "out"
        volumes = [{"name": "o", "hostPath": {"path": str(out), "type": "DirectoryOrCreate"}}]
        await create(client, "stubborn", container, volumes=volumes)
        await ready(client, "stubborn")
        began = time.monotonic()
        await client.delete(PODS, "stubborn", "default", grace_period_s=1)

        async def gone() -> bool:
            try:
                await client.get(PODS, "stubborn", "default")
            except NotFound:
                return True
            return False

        await eventually(gone)
        assert 0.8 < time.monotonic() - began < 6
        assert (out / "log").read_text().split() == ["stop", "term"]

    run(node, body)


def test_missing_config_map_is_reported_until_it_exists(node: Node) -> None:
    async def body(client: Client) -> None:
        env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}]
        await create(client, "waits", WEB | {"env": env})

        async def told() -> bool:
            shown = (await status(client, "waits")).get("containerStatuses") or [{"state": {}}]
            return bool(shown[0]["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError")

        await eventually(told)
        await client.create(CONFIGMAPS, {"metadata": {"name": "later"}, "data": {"k": "v"}}, "default")
        await ready(client, "waits")

    run(node, body)


async def event_messages(client: Client, pod: str, reason: str) -> list[str]:
    result = (await client.list(EVENTS, "default")).items
    return [e["message"] for e in map(msgspec.to_builtins, result)
            if e.get("reason") == reason and (e.get("involvedObject") or {}).get("name") == pod]  # fmt: skip


def test_stand_in_passes_probes_and_hooks_of_every_kind(node: Node) -> None:
    command = {"exec": {"command": ["pg_isready", "-U", "app"]}}
    app = {
        "name": "app", "image": "acme.example/app", "ports": [{"containerPort": 443}],
        "startupProbe": {"grpc": {"port": 9000}},
        "livenessProbe": {"httpGet": {"port": 443, "scheme": "HTTPS", "path": "/live"}},
        "readinessProbe": command, "lifecycle": {"postStart": command, "preStop": command},
    }  # fmt: skip

    async def body(client: Client) -> None:
        await create(client, "probed", app)
        await ready(client, "probed")

        async def answered() -> bool:
            text = "The stand-in passes readinessProbe, postStart, preStop of container app without running the command"
            return text in await event_messages(client, "probed", "StandInAnswered") and "/live 200" in await logs(
                client, "probed", "app"
            )

        await eventually(answered)

    run(node, body)


def test_pod_over_its_storage_limit_is_evicted(node: Node) -> None:
    writer = {
        "name": "c", "image": "busybox", "command": ["sh", "-c", "head -c 10485760 /dev/zero >/file; sleep 600"],
        "resources": {"limits": {"ephemeral-storage": "5Mi"}},
    }  # fmt: skip

    async def body(client: Client) -> None:
        await create(client, "greedy", writer)

        async def evicted() -> bool:
            shown = await status(client, "greedy")
            return (shown.get("phase"), shown.get("reason")) == ("Failed", "Evicted")

        await eventually(evicted)
        assert "ephemeral storage limit" in (await status(client, "greedy"))["message"]

    run(node, body)
