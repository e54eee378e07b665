"""The controller of a cloud's routes with a real API server: conditions, Events, and a cloud that fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network

from tests.fakes.control_plane import ControlPlane, StartControlPlane
from tests.fakes.memory_cloud import MemoryCloud

from podwire.controllers.cloudroutes import controller
from podwire.kube.controller import Environment
from podwire.kube.resources import EVENTS, NODES
from podwire.local.controllers import LocalControllerConfig

CONFIG = LocalControllerConfig(parts=("nodeipam",))


@asynccontextmanager
async def controlled(plane: StartControlPlane, cloud: MemoryCloud, nodes: int) -> AsyncIterator[ControlPlane]:
    """A control plane with the controller of the cloud's routes."""
    async with plane(nodes=nodes, config=CONFIG) as p:
        environment = Environment(p.client)
        made = controller.CloudRoutesController(environment, cloud, (ip_network("10.244.0.0/16"),))
        running = asyncio.ensure_future(environment.run({"cloudroutes": made}))
        try:
            yield p
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def joined(p: ControlPlane, cloud: MemoryCloud, number: int) -> None:
    """Gives a Node its instance."""
    address = f"10.0.0.{number}"
    provider_id = cloud.add(number, address)
    await p.client.patch(NODES, f"node-{number}", {"spec": {"providerID": provider_id}})
    status = {"addresses": [{"type": "InternalIP", "address": address}]}
    await p.client.patch(NODES, f"node-{number}", {"status": status}, subresource="status")


async def condition(p: ControlPlane, name: str) -> tuple[str, str, str]:
    nodes = (await p.client.list(NODES)).items
    node = next(each for each in nodes if each.metadata.name == name)
    chosen = [each for each in node.status.conditions if each.type == controller.CONDITION]
    return (chosen[0].status, chosen[0].reason, chosen[0].message) if chosen else ("", "", "")


async def until_condition(p: ControlPlane, name: str, status: str, text: str = "") -> str:
    async def probe() -> str | None:
        have, reason, message = await condition(p, name)
        return f"{reason}: {message}" if have == status and text in message else None

    return await p.until(probe)


async def until_event(p: ControlPlane, reason: str, text: str) -> None:
    async def probe() -> bool:
        events = (await p.client.list(EVENTS)).items
        return any(event["reason"] == reason and text in event["message"] for event in events)

    await p.until(probe)


def test_nodes_get_routes_conditions_and_events(plane: StartControlPlane) -> None:
    cloud = MemoryCloud()

    async def run() -> None:
        async with controlled(plane, cloud, 2) as p:
            wrong = await until_condition(p, "node-1", "True")
            assert wrong == "NoRouteCreated: spec.providerID is '': expected memory:///m-1"
            await until_event(p, "FailedToCreateRoute", "spec.providerID is ''")
            for number in (1, 2):
                await joined(p, cloud, number)
                assert (await until_condition(p, f"node-{number}", "False")).startswith("RouteCreated: ")
            assert set(cloud.routes().values()) == {"if-1", "if-2"}
            await p.client.delete(NODES, "node-2")
            await p.until(
                lambda: value(set(cloud.routes().values()) == {"if-1"} and not cloud.interfaces["if-2"].marked)
            )
            assert not cloud.interfaces["if-2"].forwards

    asyncio.run(run())


def test_a_cloud_that_is_away_changes_nothing(plane: StartControlPlane) -> None:
    cloud = MemoryCloud()

    async def run() -> None:
        async with controlled(plane, cloud, 2) as p:
            await joined(p, cloud, 1)
            await until_condition(p, "node-1", "False")
            cloud.away = "connection refused"
            await joined(p, cloud, 2)
            await until_event(p, "CloudUnavailable", "connection refused; the last state stays in force")
            assert (await condition(p, "node-1"))[0] == "False"
            cloud.away = ""
            await until_condition(p, "node-2", "False")

    asyncio.run(run())


def test_routes_that_another_program_deletes_come_back(plane: StartControlPlane) -> None:
    cloud = MemoryCloud()

    async def run() -> None:
        async with controlled(plane, cloud, 1) as p:
            await joined(p, cloud, 1)
            await until_condition(p, "node-1", "False")
            before = dict(cloud.routes())
            cloud.tables["table-1"].clear()
            await p.until(lambda: value(cloud.routes() == before))

    asyncio.run(run())


async def value(found: bool) -> bool:
    """The answer of a probe that needs no API."""
    return found
