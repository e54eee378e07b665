"""What an agent writes to its Node, with a client that keeps it or refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.fakes.clock import FakeClock

from podwire.cluster.announcer import Announcer, NetworkStatus, node_condition
from podwire.errors import ApiError, ApiUnreachable
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.model.document import convert
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.node import Node, NodeStatus
from podwire.runtime.tasks import TaskSet


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
def test_annotations_are_retried_until_written_or_forbidden(failures: tuple[Exception, ...], patches: int) -> None:
    async def scenario() -> None:
        api = Api(*failures)
        nodes = {"node-1": Node(metadata=ObjectMeta(name="node-1"))}
        event = asyncio.Event()

        async def tell() -> None:
            await Announcer(api, "node-1", lambda: nodes).insist(WANTED)
            event.set()

        tasks = TaskSet(lambda task, failure: None)
        tasks.start("tell", tell())
        assert isinstance(api.clock, FakeClock)
        await api.clock.advance(60)
        assert event.is_set()
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


class Stored(Api):
    """Keeps one Node; :meth:`tell` is what its watchers see of it."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 7
        self.annotations: dict[str, str] = {}
        self.conditions: dict[str, Condition] = {}
        self.nodes: dict[str, Node] = {}
        self.tell()

    async def patch(self, resource: Any, name: str, body: Any, *rest: Any, **more: Any) -> dict[str, Any]:
        self.version += 1
        if "status" in body:
            self.patches.append(body["status"])
            created = convert(body["status"], NodeStatus, "the test").conditions
            self.conditions |= {condition.type: condition for condition in created}
        else:
            await super().patch(resource, name, body, *rest, **more)
            self.annotations |= body["metadata"]["annotations"]
        return {"metadata": {"resourceVersion": str(self.version)}}

    def tell(self) -> None:
        meta = ObjectMeta(name="node-1", annotations=dict(self.annotations), resource_version=str(self.version))
        self.nodes["node-1"] = Node(metadata=meta, status=NodeStatus(conditions=tuple(self.conditions.values())))


def with_stored(scenario: Callable[[Stored, TaskSet], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        api, tasks = Stored(), TaskSet(lambda task, failure: None)
        try:
            await scenario(api, tasks)
        finally:
            await tasks.close()
            await api.close()

    return lambda: asyncio.run(run())


@with_stored
async def test_annotations_at_start_and_peer_facts_are_one_write(api: Stored, tasks: TaskSet) -> None:
    announcer = Announcer(api, "node-1", lambda: api.nodes, networked=True)
    tasks.start("proxy", announcer.insist(WANTED))
    tasks.start("policy", announcer.insist({"podwire.io/policy": "iptables"}))
    assert isinstance(api.clock, FakeClock)
    await api.clock.advance(0.1)
    assert api.patches == []
    assert await announcer.announce({"podwire.io/routing": "vxlan"}, network=NetworkStatus())
    await api.clock.advance(1)
    everything, status = api.patches
    assert everything == {**WANTED, "podwire.io/policy": "iptables", "podwire.io/routing": "vxlan"}
    assert status["conditions"][0]["type"] == "NetworkUnavailable"
    await announcer.insist({"podwire.io/policy": "nftables"})
    assert api.patches[2:] == [{"podwire.io/policy": "nftables"}]


@with_stored
async def test_refused_packets_are_a_condition_until_they_pass(api: Stored, _tasks: TaskSet) -> None:
    announcer = Announcer(api, "node-1", lambda: api.nodes)
    for problem, status in (("", "False"), ("no wireguard-go", "True"), ("no tun", "True"), ("", "False")):
        for _ in range(2):
            assert await announcer.announce({}, network=NetworkStatus(problem))
            api.tell()
        condition = api.conditions["NetworkUnavailable"]
        assert (condition.status, problem in condition.message) == (status, True)
    assert len(api.patches) == 4, "each change is one write"


@with_stored
async def test_further_conditions_are_written_when_they_become_true(api: Stored, _tasks: TaskSet) -> None:
    announcer = Announcer(api, "node-1", lambda: api.nodes)
    writes = []
    for status, message in (("False", "wide"), ("True", "narrow"), ("True", "narrower"), ("False", "wide")):
        announcer.conditions["Narrow"] = node_condition("Narrow", status, "Tested", message)
        for _ in range(2):
            await announcer.insist({})
            api.tell()
        writes.append(len(api.patches))
    assert writes == [0, 1, 2, 3], "a condition that was never true is not written"
    assert (api.conditions["Narrow"].status, api.conditions["Narrow"].message) == ("False", "wide")


@with_stored
async def test_a_ready_network_is_left_to_a_controller(api: Stored, _tasks: TaskSet) -> None:
    announcer = Announcer(api, "node-1", lambda: api.nodes)
    assert await announcer.announce({}, network=NetworkStatus(by_controller=True))
    assert api.patches == []
    assert await announcer.announce({}, network=NetworkStatus("no way", by_controller=True))
    assert api.conditions["NetworkUnavailable"].status == "True"


@with_stored
async def test_copies_older_than_the_last_write_are_ignored(api: Stored, _tasks: TaskSet) -> None:
    announcer = Announcer(api, "node-1", lambda: api.nodes)
    await announcer.insist({"podwire.io/proxy": "ipvs"})
    await announcer.insist(WANTED)
    await announcer.insist(WANTED)
    assert api.patches == [{"podwire.io/proxy": "ipvs"}, WANTED]
    api.annotations = {}
    api.version += 1
    api.tell()
    await announcer.insist(WANTED)
    assert api.patches[2:] == [WANTED], "somebody took it away"


def test_first_write_waits_for_the_network_only_briefly() -> None:
    async def scenario() -> None:
        api = Stored()
        announcer = Announcer(api, "node-1", lambda: api.nodes, networked=True, network_wait_s=0.001)
        await announcer.insist(WANTED)
        assert api.patches == [WANTED]
        await api.close()

    asyncio.run(scenario())
