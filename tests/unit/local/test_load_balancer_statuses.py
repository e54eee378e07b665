"""ServiceL2Status and ServiceBGPStatus at the real API server: who announces what, and the end of an announcement."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.fakes.control_plane import ControlPlane, StartControlPlane
from tests.unit.local.balancer_agents import bgp_agent
from tests.unit.local.test_load_balancer_addresses import make_pool, make_service, prepare, until_shown
from tests.unit.local.test_load_balancer_owners import CONFIG, VIP, put_endpoints, speakers

from podwire.kube.resources import (
    BGPADVERTISEMENTS,
    ENDPOINTSLICES,
    SERVICEBGPSTATUSES,
    SERVICEL2STATUSES,
    SERVICES,
    Json,
    Resource,
)

NAMESPACE = "metallb-system"


async def objects(plane: ControlPlane, resource: Resource[Any]) -> list[Json]:
    items: list[Json] = (await plane.client.list(resource.raw, NAMESPACE)).items  # type: ignore[assignment]
    return items


async def until(plane: ControlPlane, resource: Resource[Any], check: Callable[[list[Json]], bool]) -> list[Json]:
    """The objects of a kind, once the statuses among them are as they should be."""

    async def probe() -> bool:
        return check([item.get("status", {}) for item in await objects(plane, resource)])

    await plane.until(probe)
    return await objects(plane, resource)


def of(node: str, **fields: object) -> Json:
    return {"node": node, "serviceName": "web", "serviceNamespace": "default"} | fields


def test_the_status_follows_the_node_that_answers(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            devices = [{"name": "eth0"}]
            (item,) = await until(p, SERVICEL2STATUSES, lambda found: found == [of(first, interfaces=devices)])
            assert item["metadata"]["labels"]["metallb.io/service-name"] == "web"
            assert item["metadata"]["ownerReferences"][0]["name"] == first, "it goes with its Node"
            s.agents[first].client.cut = True
            await s.agents[first].kill()
            await s.until(lambda: bool(s.owners()) and s.owners() != (first,))
            second = await s.owner()
            await until(p, SERVICEL2STATUSES, lambda found: found == [of(second, interfaces=devices)])
            await put_endpoints(p)
            await until(p, SERVICEL2STATUSES, lambda found: not found)
            await put_endpoints(p, second)
            await until(p, SERVICEL2STATUSES, lambda found: found == [of(second, interfaces=devices)])
            await p.client.delete(SERVICES, "web", "default")
            await until(p, SERVICEL2STATUSES, lambda found: not found)

    asyncio.run(run())


def test_the_status_names_the_routers_of_a_service(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1, config=CONFIG) as p:
            await prepare(p)
            await make_pool(p)
            await make_service(p, "web")
            await until_shown(p, "web", [VIP])
            (node,) = p.nodes.names
            await put_endpoints(p, node)
            body = {"apiVersion": "metallb.io/v1beta1", "kind": "BGPAdvertisement", "metadata": {"name": "all"}}
            async with bgp_agent(p) as agent:
                await agent.put_peer("tor")
                await p.client.create(BGPADVERTISEMENTS, body, NAMESPACE)
                (item,) = await until(p, SERVICEBGPSTATUSES, lambda found: found == [of(node, peers=["tor"])])
            async with bgp_agent(p) as agent:
                await agent.put_peer("second", peerAddress="10.89.0.2")
                (again,) = await until(
                    p, SERVICEBGPSTATUSES, lambda found: found == [of(node, peers=["second", "tor"])]
                )
                assert again["metadata"]["uid"] == item["metadata"]["uid"], "a restarted agent changes its own object"
                await p.client.delete(SERVICEBGPSTATUSES, again["metadata"]["name"], NAMESPACE)
                await until(p, SERVICEBGPSTATUSES, lambda found: found == [of(node, peers=["second", "tor"])])
                await p.client.delete(ENDPOINTSLICES, "web-1", "default")
                await until(p, SERVICEBGPSTATUSES, lambda found: not found)

    asyncio.run(run())
