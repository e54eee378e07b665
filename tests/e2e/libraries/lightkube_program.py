"""lightkube: typed objects, server-side apply, exec over httpx.

Exec uses the asynchronous client. The synchronous one closes its socket while a thread still reads from that
descriptor, which takes bytes of the next connection now and then.
"""

import asyncio
import time

from lightkube import ApiError, AsyncClient, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import PatchType
from tests.e2e.libraries import checks

NAMESPACE = checks.namespace()
NAME = f"lightkube-{time.monotonic_ns()}"

client = Client(namespace=NAMESPACE, field_manager="lightkube")


def _map(name: str, **data: str) -> ConfigMap:
    metadata = ObjectMeta(name=name, namespace=NAMESPACE, labels={"of": NAME})
    return ConfigMap(apiVersion="v1", kind="ConfigMap", metadata=metadata, data=data)


def change_objects() -> None:
    client.create(_map(NAME, a="1"))
    client.patch(ConfigMap, NAME, {"data": {"b": "2"}}, patch_type=PatchType.MERGE)
    assert client.get(ConfigMap, NAME).data == {"a": "1", "b": "2"}
    try:
        client.apply(_map(NAME, a="2"), field_manager="other")
        raise AssertionError("another manager's field was changed")
    except ApiError as failure:
        assert failure.status.code == 409, failure
    assert client.apply(_map(NAME, a="2"), field_manager="other", force=True).data == {"a": "2", "b": "2"}
    client.delete(ConfigMap, NAME)
    try:
        client.get(ConfigMap, NAME)
        raise AssertionError("the deleted object was read")
    except ApiError as failure:
        assert failure.status.code == 404, failure


def list_in_pages() -> None:
    expected = [f"{NAME}-{number}" for number in range(3)]
    for name in expected:
        client.create(_map(name))
    result = list(client.list(ConfigMap, labels={"of": NAME}, chunk_size=2))
    assert [item.metadata.name for item in result] == expected, result
    for name in expected:
        client.delete(ConfigMap, name)


def watch_changes() -> None:
    listed = client.list(ConfigMap)
    list(listed)
    client.create(_map(NAME))
    client.delete(ConfigMap, NAME)
    events = []
    for event, changed in client.watch(
        ConfigMap, labels={"of": NAME}, resource_version=listed.resourceVersion, server_timeout=20
    ):
        events.append((event, changed.metadata.name))
        if event == "DELETED":
            break
    assert events == [("ADDED", NAME), ("DELETED", NAME)], events


def read_log() -> None:
    last = list(client.log("box", tail_lines=1, timestamps=True))
    assert len(last) == 1 and last[0].endswith("Z second\n"), last
    lines = []
    for line in client.log("box", follow=True):
        lines.append(line)
        if line == "second\n":
            break
    assert lines == ["first\n", "second\n"], lines


async def execute() -> None:
    done = await AsyncClient(namespace=NAMESPACE).exec(
        "box", command=["sh", "-c", "echo out; echo err >&2; exit 3"], stdout=True, stderr=True
    )
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3), done


async def execute_with_input() -> None:
    done = await AsyncClient(namespace=NAMESPACE).exec("box", command=["cat"], stdin="a line\n", stdout=True)
    assert (done.stdout, done.exit_code) == ("a line\n", 0), done


def read_types() -> None:
    assert {"box", "web"} <= {pod.metadata.name for pod in client.list(Pod, fields={"status.phase": "Running"})}


checks.run(
    {
        checks.OBJECTS: change_objects,
        checks.LIST: list_in_pages,
        checks.WATCH: watch_changes,
        checks.LOG: read_log,
        checks.EXEC: lambda: asyncio.run(execute()),
        checks.EXEC_INPUT: lambda: asyncio.run(execute_with_input()),
        "field selector": read_types,
    }
)
