"""Events: aggregation and limits."""

import asyncio

from tests.fakes import scripted_http as http

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.events import EventRecorder, RateLimit, reference
from podwire.model.meta import ObjectMeta
from podwire.runtime.clock import SystemClock
from podwire.runtime.supervise import Supervisor

SUBJECT = reference("v1", "Pod", ObjectMeta(name="p", namespace="d", uid="u", resource_version="7"))


def test_rate_limit_allows_a_burst_then_one_in_five_seconds() -> None:
    limit = RateLimit()
    assert sum(limit.allows("a", 0.0) for _ in range(100)) == 25
    assert limit.allows("b", 0.0)
    assert sum(limit.allows("a", t / 10) for t in range(100)) == 1
    assert sum(limit.allows("a", 10 + t) for t in range(50)) in (10, 11)


def test_equal_events_increase_the_count() -> None:
    async def handler(received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {})

    async def run() -> list[http.ReceivedRequest]:
        async with http.ScriptedServer(handler) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            recorder = EventRecorder(client, "kubelet", host="n1")
            for _ in range(3):
                recorder.event(SUBJECT, "Normal", "Started", "Started container c")
            recorder.event(SUBJECT, "Warning", "Failed", "other")
            async with Supervisor(SystemClock(), lambda name, failure: None) as supervisor:
                task = supervisor.start("recorder", recorder.run)
                async with asyncio.timeout(5):
                    while len(server.received) < 4:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                task.cancel()
            await client.close()
            return server.received

    observed = asyncio.run(run())
    assert [(s.method, s.json.get("count")) for s in observed] == [("POST", 1), ("PATCH", 2), ("PATCH", 3), ("POST", 1)]
    first = observed[0].json
    assert first["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "d",
        "name": "p",
        "uid": "u",
        "resourceVersion": "7",
    }
    assert first["source"] == {"component": "kubelet", "host": "n1"}
    assert observed[1].target.startswith(f"/api/v1/namespaces/d/events/{first['metadata']['name']}?")


def test_events_are_dropped_while_the_api_is_unreachable() -> None:
    async def run() -> None:
        recorder = EventRecorder(Client(ApiConfig("http://127.0.0.1:1"), SystemClock()), "c")
        for n in range(5000):
            recorder.event(reference("v1", "Pod", ObjectMeta(name=f"p{n}", uid=f"{n}")), "Normal", "R", "m")

    asyncio.run(run())
