"""Kinds that the API may not serve."""

import asyncio

from tests.fakes import scripted_http as http

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served, list_if_served
from podwire.kube.resources import CLUSTERNETWORKPOLICIES
from podwire.model.policy import ClusterNetworkPolicy
from podwire.runtime.clock import SystemClock

POLICY = {"metadata": {"name": "deny", "resourceVersion": "7"}, "spec": {}}


class LateKind:
    """Answers 404 a number of times, then serves one object."""

    def __init__(self, missing: int) -> None:
        self.missing = missing

    async def __call__(self, received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        if self.missing:
            self.missing -= 1
            return http.answer(writer, {"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if "watch=true" in received_request.target:
            http.open_stream(writer)
            await writer.drain()
            await asyncio.sleep(3600)
        return http.answer(writer, {"metadata": {"resourceVersion": "7"}, "items": [POLICY]})


def test_a_kind_that_is_not_served_has_no_objects() -> None:
    async def run() -> tuple[tuple[ClusterNetworkPolicy, ...], tuple[ClusterNetworkPolicy, ...]]:
        async with http.ScriptedServer(LateKind(missing=1)) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            try:
                missing = await list_if_served(client, CLUSTERNETWORKPOLICIES)
                return missing, await list_if_served(client, CLUSTERNETWORKPOLICIES)
            finally:
                await client.close()

    missing, served = asyncio.run(run())
    assert missing == ()
    assert [policy.metadata.name for policy in served] == ["deny"]


def test_informer_is_synced_at_once_and_follows_later() -> None:
    async def run() -> tuple[dict[str, ClusterNetworkPolicy], list[str]]:
        async with http.ScriptedServer(LateKind(missing=1)) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            informer = Informer(client, CLUSTERNETWORKPOLICIES)
            arrived = asyncio.Event()
            informer.subscribe(lambda *_: arrived.set())
            async with asyncio.TaskGroup() as group:
                task = group.create_task(follow_when_served(client, informer))
                await informer.synced.wait()
                before = dict(informer.objects)
                async with asyncio.timeout(5):
                    await arrived.wait()
                task.cancel()
            await client.close()
            return before, list(informer.objects)

    assert asyncio.run(run()) == ({}, ["deny"])
