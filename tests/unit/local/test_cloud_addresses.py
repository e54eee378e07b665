"""The controller of a cloud's addresses with a real API server: the annotation of a Node, and Events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fakes.control_plane import ControlPlane, StartControlPlane
from tests.fakes.memory_addresses import MemoryAddresses

from podwire.cluster.cloudinterfaces import NodeInterfaces, read_interfaces
from podwire.controllers.cloudaddresses.controller import REASON, CloudAddressesController
from podwire.controllers.cloudaddresses.plan import AddressTargets
from podwire.kube.controller import Environment
from podwire.kube.resources import EVENTS, NODES, PODS
from podwire.local.controllers import LocalControllerConfig

CONFIG = LocalControllerConfig(parts=("scheduler",))


@asynccontextmanager
async def controlled(plane: StartControlPlane, cloud: MemoryAddresses) -> AsyncIterator[ControlPlane]:
    """A control plane of one node, with the controller of the cloud's addresses."""
    async with plane(nodes=1, config=CONFIG) as p:
        environment = Environment(p.client)
        made = CloudAddressesController(environment, cloud, AddressTargets(warm=1))
        running = asyncio.ensure_future(environment.run({"cloudaddresses": made}))
        cloud.instances.add("m-1")
        await p.client.patch(NODES, "node-1", {"spec": {"providerID": "memory:///m-1"}})
        try:
            yield p
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def interfaces(p: ControlPlane) -> NodeInterfaces | None:
    return read_interfaces((await p.client.list(NODES)).items[0].metadata.annotations)


async def addresses(p: ControlPlane) -> int:
    have = await interfaces(p)
    return sum(len(each.pods) for each in have.interfaces) if have is not None else 0


async def until_addresses(p: ControlPlane, number: int) -> None:
    async def probe() -> bool:
        return await addresses(p) == number

    await p.until(probe)


async def until_event(p: ControlPlane, reason: str, text: str) -> None:
    async def probe() -> bool:
        events = (await p.client.list(EVENTS)).items
        return any(event["reason"] == reason and text in event["message"] for event in events)

    await p.until(probe)


def pod(name: str) -> dict[str, object]:
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "node-1"}
    return {"metadata": {"name": name}, "spec": spec}


def test_a_node_gets_addresses_with_its_pods(plane: StartControlPlane) -> None:
    async def run() -> None:
        cloud = MemoryAddresses()
        async with controlled(plane, cloud) as p:
            await until_addresses(p, 1)
            for number in range(2):
                await p.client.create(PODS, pod(f"p{number}"), "default")
            await until_addresses(p, 3)
            for number in range(2, 7):
                await p.client.create(PODS, pod(f"p{number}"), "default")
            await until_addresses(p, 6)
            await until_event(p, REASON, "instance m-1 has no room for 2 of 8 addresses")

    asyncio.run(run())


def test_an_old_answer_of_the_cloud_takes_no_address(plane: StartControlPlane) -> None:
    async def run() -> None:
        cloud = MemoryAddresses()
        async with controlled(plane, cloud) as p:
            await until_addresses(p, 1)
            before = await interfaces(p)
            cloud.hidden = {"if-1"}
            await p.client.create(PODS, pod("p"), "default")
            await until_addresses(p, 2)
            after = await interfaces(p)
            assert before is not None and after is not None and not after.lacks(before)

    asyncio.run(run())


def test_a_cloud_that_is_away_takes_no_address(plane: StartControlPlane) -> None:
    async def run() -> None:
        cloud = MemoryAddresses()
        async with controlled(plane, cloud) as p:
            await until_addresses(p, 1)
            cloud.away = "no answer"
            await p.client.create(PODS, pod("p"), "default")
            await until_event(p, "CloudUnavailable", "no answer; the last state stays in force")
            assert await addresses(p) == 1
            cloud.away = ""
            await until_addresses(p, 2)

    asyncio.run(run())


def test_interfaces_of_a_deleted_node_are_deleted(plane: StartControlPlane) -> None:
    async def run() -> None:
        cloud = MemoryAddresses()
        async with controlled(plane, cloud) as p:
            await until_addresses(p, 1)
            await p.client.delete(NODES, "node-1")

            async def probe() -> bool:
                return not cloud.interfaces

            await p.until(probe)

    asyncio.run(run())
