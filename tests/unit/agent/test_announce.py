"""What an agent writes to its Node, with a client that keeps it or refuses."""

import asyncio
from typing import Any

import pytest

from podwire.agent.announce import Announcer
from podwire.errors import ApiError, ApiUnreachable
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.runtime.tasks import TaskSet
from podwire.testing.clock import FakeClock


class Api(Client):
    """Answers each patch with the next failure, or takes it."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__(ApiConfig("http://127.0.0.1:1"), FakeClock())
        self.failures = list(failures)
        self.patches: list[Any] = []

    async def patch(self, resource: Any, name: str, body: Any, *rest: Any, **more: Any) -> dict[str, Any]:
        self.patches.append(body["metadata"]["annotations"])
        if self.failures:
            raise self.failures.pop(0)
        return {}


AWAY, FORBIDDEN = ApiUnreachable("refused"), ApiError(403, "Forbidden", "nodes is forbidden")
WANTED = {"podwire.io/proxy": "nftables"}


@pytest.mark.parametrize(
    ("failures", "patches"),
    [((), 1), ((AWAY, AWAY), 3), ((FORBIDDEN,), 1), ((AWAY, FORBIDDEN, AWAY), 2), ((ApiError(500, "", "x"),), 2)],
)
def test_it_insists_until_it_is_said_or_forbidden(failures: tuple[Exception, ...], patches: int) -> None:
    async def scenario() -> None:
        api = Api(*failures)
        nodes = {"node-1": Node(metadata=ObjectMeta(name="node-1"))}
        told = asyncio.Event()

        async def tell() -> None:
            await Announcer(api, "node-1", lambda: nodes).insist(WANTED)
            told.set()

        tasks = TaskSet(lambda task, failure: None)
        tasks.start("tell", tell())
        assert isinstance(api.clock, FakeClock)
        await api.clock.advance(60)
        assert told.is_set()
        assert api.patches == [WANTED] * patches
        await tasks.close()
        await api.close()

    asyncio.run(scenario())


def test_a_node_that_is_not_there_yet_is_waited_for() -> None:
    async def scenario() -> None:
        api = Api(FORBIDDEN)
        nodes: dict[str, Node] = {}
        announcer = Announcer(api, "node-1", lambda: nodes)
        tasks = TaskSet(lambda task, failure: None)
        assert isinstance(api.clock, FakeClock)
        tasks.start("tell", announcer.insist(WANTED))
        await api.clock.advance(30)
        assert api.patches == []
        nodes["node-1"] = Node(metadata=ObjectMeta(name="node-1"))
        await api.clock.advance(30)
        assert len(api.patches) == 1
        await announcer.insist(WANTED)
        assert len(api.patches) == 2, "asked again, it tries again"
        await tasks.close()
        await api.close()

    asyncio.run(scenario())
