"""kr8s: its WebSocket for port-forward names no subprotocol."""

import asyncio
import socket
import time

import httpx
import kr8s
from kr8s import _exec
from kr8s.asyncio.objects import ConfigMap, Pod
from tests.e2e.libraries import checks

NAMESPACE = checks.namespace()
NAME = f"kr8s-{time.monotonic_ns()}"


async def _map(name: str) -> ConfigMap:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"of": NAME}}
    return await ConfigMap({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}})


async def change_objects() -> None:
    created = await _map(NAME)
    await created.create()
    await created.patch({"data": {"b": "2"}})
    assert dict(created.data) == {"a": "1", "b": "2"}, created.data
    await created.label(colour="blue")
    read = await ConfigMap.get(NAME, namespace=NAMESPACE)
    assert read.labels["colour"] == "blue"
    await created.delete()
    try:
        await ConfigMap.get(NAME, namespace=NAMESPACE, timeout=0)
        raise AssertionError("the deleted object was read")
    except kr8s.NotFoundError:
        pass


async def list_by_label() -> None:
    expected = [f"{NAME}-{number}" for number in range(3)]
    for name in expected:
        await (await _map(name)).create()
    results = [item async for item in kr8s.asyncio.get("configmaps", namespace=NAMESPACE, label_selector={"of": NAME})]
    assert [item.name for item in results] == expected, results
    for item in results:
        await item.delete()


async def watch_changes() -> None:
    api = await kr8s.asyncio.api()
    events = []
    looking = api.watch("configmaps", namespace=NAMESPACE, label_selector={"of": NAME})

    async def change() -> None:
        created = await _map(NAME)
        await created.create()
        await created.delete()

    changing = asyncio.create_task(change())
    async for event, changed in looking:
        events.append((event, changed.name))
        if event == "DELETED":
            break
    await changing
    assert events[0] == ("ADDED", NAME) and events[-1] == ("DELETED", NAME), events


async def read_log() -> None:
    box = await Pod.get("box", namespace=NAMESPACE)
    last = [line async for line in box.logs(tail_lines=1, timestamps=True)]
    assert len(last) == 1 and last[0].endswith("Z second"), last
    lines = []
    async for line in box.logs(follow=True):
        lines.append(line)
        if line == "second":
            break
    assert lines == ["first", "second"], lines


async def execute() -> None:
    box = await Pod.get("box", namespace=NAMESPACE)
    done = await box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 3), done


async def execute_with_input() -> None:
    box = await Pod.get("box", namespace=NAMESPACE)
    _exec.EXEC_PROTOCOL = "v5.channel.k8s.io"  # kr8s sends input with this one only, and asks for v4 by default
    done = await box.exec(["cat"], stdin="a line\n")
    assert (done.stdout, done.returncode) == (b"a line\n", 0), done


async def forward_port() -> None:
    web = await Pod.get("web", namespace=NAMESPACE)
    with socket.create_server(("127.0.0.1", 0)) as probe:  # kr8s chooses one that may be in use
        free = probe.getsockname()[1]
    async with web.portforward(remote_port=80, local_port=free) as port, httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{port}/")
        assert answer.status_code == 200, answer


asyncio.run(
    checks.run_async(
        {
            checks.OBJECTS: change_objects,
            checks.LIST: list_by_label,
            checks.WATCH: watch_changes,
            checks.LOG: read_log,
            checks.EXEC: execute,
            checks.EXEC_INPUT: execute_with_input,
            checks.PORT_FORWARD: forward_port,
        }
    )
)
