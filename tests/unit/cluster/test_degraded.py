"""What an agent says on its Node: every change once, from all parts together."""

import asyncio
from collections.abc import Mapping

from tests.fakes.clock import FakeClock

from podwire.cluster.announcer import Announcer
from podwire.cluster.degraded import FEATURE_MISSING, SETTINGS_REFUSED, DegradedModes
from podwire.cluster.names import NODE_FALLBACK
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.events import EventRecorder, Severity
from podwire.model.meta import ObjectMeta, ObjectReference
from podwire.model.node import Node

NODES: Mapping[str, Node] = {"node-1": Node(metadata=ObjectMeta(name="node-1", uid="u"))}


class Announced(Announcer):
    """Keeps what it is told to write."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, "node-1", lambda: NODES)
        self.written: list[str] = []

    async def insist(self, annotations: Mapping[str, str]) -> None:
        self.written.append(annotations[NODE_FALLBACK])


class Noted(EventRecorder):
    """Keeps the events."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, "podwire-agent")
        self.events: list[tuple[str, str, str]] = []

    def event(self, subject: ObjectReference, severity: Severity, reason: str, message: str) -> None:
        self.events.append((f"{severity} {subject.kind}/{subject.name}", reason, message))


def test_each_change_is_reported_once() -> None:
    async def body() -> None:
        client = Client(ApiConfig("http://127.0.0.1:1"), FakeClock())
        announcer, events = Announced(client), Noted(client)
        degraded = DegradedModes(announcer, events, "node-1", lambda: NODES)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(degraded.run())

            async def settle() -> None:
                for _ in range(5):
                    await asyncio.sleep(0)

            await settle()
            degraded.report("routing", FEATURE_MISSING, "no vxlan")
            degraded.report("settings", SETTINGS_REFUSED, "a: wrong")
            await settle()
            degraded.report("routing", FEATURE_MISSING, "no vxlan")
            degraded.report("proxy", FEATURE_MISSING, "")
            await settle()
            degraded.report("settings", SETTINGS_REFUSED, "")
            await settle()
            degraded.report("settings", SETTINGS_REFUSED, "a: wrong")
            await settle()
            running.cancel()
        await client.close()
        assert announcer.written == ["", "no vxlan; a: wrong", "no vxlan", "no vxlan; a: wrong"]
        assert events.events == [
            ("Warning Node/node-1", "FeatureMissing", "no vxlan"),
            ("Warning Node/node-1", "SettingsRefused", "a: wrong"),
            ("Warning Node/node-1", "SettingsRefused", "a: wrong"),
        ]

    asyncio.run(body())
