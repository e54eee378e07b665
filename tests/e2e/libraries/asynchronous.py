"""kubernetes_asyncio: the official API on aiohttp."""

import asyncio
import time
from typing import Any

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.stream import WsApiClient
from tests.e2e.libraries import checks

NAMESPACE = checks.namespace()
NAME = f"asyncio-{time.monotonic_ns()}"
LABEL = f"of={NAME}"


def _map(name: str) -> Any:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"of": NAME}), data={"a": "1"})


class Program:
    """The checks, with one connection pool."""

    def __init__(self, api: ApiClient) -> None:
        self._core = client.CoreV1Api(api)

    async def change_objects(self) -> None:
        await self._core.create_namespaced_config_map(NAMESPACE, _map(NAME))
        await self._core.patch_namespaced_config_map(NAME, NAMESPACE, {"data": {"b": "2"}})
        read = await self._core.read_namespaced_config_map(NAME, NAMESPACE)
        assert read.data == {"a": "1", "b": "2"}, read.data
        await self._core.replace_namespaced_config_map(NAME, NAMESPACE, read)
        try:
            await self._core.replace_namespaced_config_map(NAME, NAMESPACE, read)
            status = 200
        except ApiException as failure:
            status = failure.status
        assert status in (200, 409)
        await self._core.delete_namespaced_config_map(NAME, NAMESPACE)

    async def list_in_pages(self) -> None:
        expected = [f"{NAME}-{number}" for number in range(3)]
        for name in expected:
            await self._core.create_namespaced_config_map(NAMESPACE, _map(name))
        names, token = [], None
        while token != "":
            page = await self._core.list_namespaced_config_map(
                NAMESPACE, label_selector=LABEL, limit=2, **({"_continue": token} if token else {})
            )
            names += [item.metadata.name for item in page.items]
            token = page.metadata._continue or ""
        assert names == expected, names
        await self._core.delete_collection_namespaced_config_map(NAMESPACE, label_selector=LABEL)

    async def watch_changes(self) -> None:
        start = (await self._core.list_namespaced_config_map(NAMESPACE)).metadata.resource_version
        await self._core.create_namespaced_config_map(NAMESPACE, _map(NAME))
        await self._core.delete_namespaced_config_map(NAME, NAMESPACE)
        events = []
        async with watch.Watch() as looking:
            async for event in looking.stream(
                self._core.list_namespaced_config_map,
                NAMESPACE,
                label_selector=LABEL,
                resource_version=start,
                timeout_seconds=20,
            ):
                events.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    break
        assert events == [("ADDED", NAME), ("DELETED", NAME)], events

    async def read_log(self) -> None:
        last = await self._core.read_namespaced_pod_log("box", NAMESPACE, tail_lines=1, timestamps=True)
        assert last.endswith("Z second\n"), last
        answer = await self._core.read_namespaced_pod_log("box", NAMESPACE, follow=True, _preload_content=False)
        lines = [await answer.content.readline(), await answer.content.readline()]
        answer.close()
        assert lines == [b"first\n", b"second\n"], lines

    async def execute(self) -> None:
        async with WsApiClient() as api:
            output = await client.CoreV1Api(api).connect_get_namespaced_pod_exec(
                "box",
                NAMESPACE,
                command=["sh", "-c", "echo out; exit 3"],
                stdout=True,
                stderr=True,
                stdin=False,
                tty=False,
            )
            assert output == "out\n", output

    async def execute_with_input(self) -> None:
        async with WsApiClient() as api:
            socket = await client.CoreV1Api(api).connect_get_namespaced_pod_exec(
                "box",
                NAMESPACE,
                command=["head", "-n1"],
                stdout=True,
                stderr=True,
                stdin=True,
                tty=False,
                _preload_content=False,
            )
            async with socket as connection:
                await connection.send_bytes(b"\x00a line\n")
                received = [message.data async for message in connection]
        assert b"\x01a line\n" in received, received
        status = next(data for data in received if data[0] == 3)
        assert WsApiClient.parse_error_data(status[1:].decode()) == 0

    async def forward_port(self) -> None:
        async with WsApiClient() as api:
            socket = await client.CoreV1Api(api).connect_get_namespaced_pod_portforward(
                "web", NAMESPACE, ports="80", _preload_content=False
            )
            async with socket as connection:
                await connection.send_bytes(b"\x00GET / HTTP/1.0\r\nHost: web\r\n\r\n")
                received = b"".join([message.data[1:] async for message in connection if message.data[0] == 0])
        assert received[2:].startswith(b"HTTP/1.1 200 "), received


async def main() -> None:
    await config.load_kube_config()
    async with ApiClient() as api:
        program = Program(api)
        await checks.run_async(
            {
                checks.OBJECTS: program.change_objects,
                checks.LIST: program.list_in_pages,
                checks.WATCH: program.watch_changes,
                checks.LOG: program.read_log,
                checks.EXEC: program.execute,
                checks.EXEC_INPUT: program.execute_with_input,
                checks.PORT_FORWARD: program.forward_port,
            }
        )


asyncio.run(main())
