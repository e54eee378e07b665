"""The addresses of Services of type LoadBalancer at the real API server: status, Events, races, restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.controllers.loadbalancer.controller import LoadBalancerController
from podwire.kube.client import MERGE_PATCH, Body, Client
from podwire.kube.config import ApiConfig
from podwire.kube.controller import Environment
from podwire.kube.resources import (
    CONFIGMAPS,
    CUSTOMRESOURCEDEFINITIONS,
    EVENTS,
    IPADDRESSPOOLS,
    NAMESPACES,
    SERVICES,
    Json,
    Resource,
)
from podwire.local.addons.ensure import manifests
from podwire.local.controllers import LocalControllerConfig

POOL: Json = {"addresses": ["192.0.2.0/24"]}
CONFIG = LocalControllerConfig(parts=("loadbalancer",))


async def prepare(plane: ControlPlane) -> None:
    """Installs the kinds and the namespace of MetalLB."""
    for manifest in manifests(("metallb.yaml",), "10.96.0.10", 1):
        if manifest.kind == "CustomResourceDefinition" and manifest.name.endswith("metallb.io"):
            await plane.client.create(CUSTOMRESOURCEDEFINITIONS, manifest.body)
    await plane.client.create(NAMESPACES.raw, {"metadata": {"name": "metallb-system"}})


async def make_pool(plane: ControlPlane, name: str = "pool", **spec: object) -> None:
    body = {
        "apiVersion": "metallb.io/v1beta1",
        "kind": "IPAddressPool",
        "metadata": {"name": name},
        "spec": POOL | spec,
    }

    async def created() -> bool:
        answer = await plane.client.raw(
            "GET", "/apis/metallb.io/v1beta1/namespaces/metallb-system/ipaddresspools", None, b"", {}
        )
        return answer.status == 200

    await plane.until(created)
    await plane.client.create(IPADDRESSPOOLS, body, "metallb-system")


async def make_service(plane: ControlPlane, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"port": 80}]} | spec,
    }
    return await plane.client.create(SERVICES, body, "default")


async def shown(plane: ControlPlane, name: str) -> list[str]:
    service = await plane.client.get(SERVICES, name, "default")
    return [entry["ip"] for entry in service["status"].get("loadBalancer", {}).get("ingress", [])]


async def until_shown(plane: ControlPlane, name: str, want: list[str]) -> None:
    async def probe() -> bool:
        return await shown(plane, name) == want

    await plane.until(probe)


async def until_event(plane: ControlPlane, name: str, text: str) -> None:
    async def probe() -> bool:
        events = (await plane.client.list(EVENTS)).items
        return any(text in e["message"] and e["involvedObject"]["name"] == name for e in events)

    await plane.until(probe)


def test_services_get_addresses_and_give_them_back(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=0, config=CONFIG) as p:
            await prepare(p)
            await make_service(p, "early")
            await make_pool(p, addresses=["192.0.2.1-192.0.2.2"])
            await until_shown(p, "early", ["192.0.2.1"])
            await until_event(p, "early", 'Assigned IP ["192.0.2.1"]')
            service = await p.client.get(SERVICES, "early", "default")
            assert service["metadata"]["annotations"]["metallb.io/ip-allocated-from-pool"] == "pool"
            await make_service(p, "asks", {"metallb.io/loadBalancerIPs": "192.0.2.2"})
            await until_shown(p, "asks", ["192.0.2.2"])
            await make_service(p, "late")
            await until_event(p, "late", 'Failed to allocate IP for "default/late": no available IPs')
            other = await make_service(p, "other-class", loadBalancerClass="example.com/lb")

            async def counted() -> bool:
                pool = await p.client.get(IPADDRESSPOOLS, "pool", "metallb-system")
                status = pool.get("status", {})
                return (status.get("assignedIPv4"), status.get("availableIPv4")) == (2, 0)

            await p.until(counted)
            await p.client.delete(SERVICES, "early", "default")
            await until_shown(p, "late", ["192.0.2.1"])
            await p.client.patch(SERVICES, "asks", {"spec": {"type": "ClusterIP"}}, "default")
            await until_shown(p, "asks", [])
            assert (await p.client.get(SERVICES, "other-class", "default"))["metadata"]["resourceVersion"] == (
                other["metadata"]["resourceVersion"]
            )

    asyncio.run(run())


def test_a_wrong_pool_keeps_its_last_good_form(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=0, config=CONFIG) as p:
            await prepare(p)
            await make_pool(p)
            await make_service(p, "web")
            await until_shown(p, "web", ["192.0.2.0"])
            await p.client.patch(IPADDRESSPOOLS, "pool", {"spec": {"addresses": ["nonsense"]}}, "metallb-system")
            await until_event(p, "pool", "the last good form stays in force")
            await make_service(p, "zone")
            await until_shown(p, "zone", ["192.0.2.1"])
            await p.client.patch(IPADDRESSPOOLS, "pool", {"spec": {"addresses": ["198.51.100.0/24"]}}, "metallb-system")
            await until_shown(p, "web", ["198.51.100.0"])
            await until_shown(p, "zone", ["198.51.100.1"])

    asyncio.run(run())


def test_addresses_stay_while_the_api_restarts(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=0, config=CONFIG) as p:
            await prepare(p)
            await make_pool(p)
            for name in ("a", "b", "c"):
                await make_service(p, name)
                await until_shown(p, name, [f"192.0.2.{ord(name) - ord('a')}"])
            await p.client.delete(SERVICES, "a", "default")
            await p.restart(1.0)
            await make_service(p, "d")
            await until_shown(p, "d", ["192.0.2.0"])
            assert [await shown(p, name) for name in ("b", "c")] == [["192.0.2.1"], ["192.0.2.2"]]

    asyncio.run(run())


def test_two_controllers_hand_out_no_address_twice(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=0, config=CONFIG) as p, second_controller(p):
            await prepare(p)
            await make_pool(p, addresses=["192.0.2.0/26"])
            names = [f"s{number}" for number in range(40)]
            await asyncio.gather(*(make_service(p, name) for name in names))

            async def all_shown() -> dict[str, list[str]] | None:
                addresses = {name: await shown(p, name) for name in names}
                return addresses if all(addresses.values()) else None

            addresses = await p.until(all_shown)
            flat = [address for entries in addresses.values() for address in entries]
            assert len(flat) == len(set(flat)) == len(names)
            record = await p.client.get(CONFIGMAPS, "load-balancer-192.0.2.0", "kube-system")
            assert set(record["data"]) == set(flat)

    asyncio.run(run())


def test_a_controller_without_its_lease_cannot_show_a_freed_address(plane: StartControlPlane) -> None:
    """The first controller records an address, then its writes to Services are held up until others have it."""

    async def run() -> None:
        async with plane(nodes=0, config=LocalControllerConfig(parts=("nodeipam",))) as p:
            await prepare(p)
            await make_pool(p, addresses=["192.0.2.1/32"])
            slow = HeldClient(api_of(p), p.client.clock)
            async with second_controller(p, slow):
                await make_service(p, "web")
                await asyncio.wait_for(slow.reached.wait(), 60)
                async with second_controller(p):
                    await p.client.patch(SERVICES, "web", {"spec": {"type": "ClusterIP"}}, "default")

                    async def freed() -> bool:
                        record = await p.client.get(CONFIGMAPS, "load-balancer-192.0.2.0", "kube-system")
                        return not record.get("data")

                    await p.until(freed)
                    await make_service(p, "next")
                    await until_shown(p, "next", ["192.0.2.1"])
                    slow.go.set()
                    await p.until(slow.was_refused)
            assert [await shown(p, name) for name in ("web", "next")] == [[], ["192.0.2.1"]]

    asyncio.run(run())


class HeldClient(Client):
    """Holds up writes to Services until ``go``."""

    def __init__(self, api: ApiConfig, clock: Any) -> None:
        super().__init__(api, clock)
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.refused = 0

    async def was_refused(self) -> bool:
        return self.refused > 0

    async def patch(
        self,
        resource: Resource[Any],
        name: str,
        body: Body,
        namespace: str = "",
        *,
        patch_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> Json:
        options = {"patch_type": patch_type, "subresource": subresource}
        if resource is not SERVICES:
            return await super().patch(resource, name, body, namespace, **options)
        self.reached.set()
        await self.go.wait()
        try:
            return await super().patch(resource, name, body, namespace, **options)
        except Exception:
            self.refused += 1
            raise


def api_of(plane: ControlPlane) -> ApiConfig:
    keys = plane.folder
    return ApiConfig(
        f"https://127.0.0.1:{plane.port}",
        ca=(keys / "ca.crt").read_bytes(),
        certificate=(keys / "admin.crt").read_bytes(),
        key=(keys / "admin.key").read_bytes(),
    )


@asynccontextmanager
async def second_controller(plane: ControlPlane, client: Client | None = None) -> AsyncIterator[None]:
    """A further controller of addresses with a client of its own, without any election."""
    own = client or Client(api_of(plane), plane.client.clock)
    environment = Environment(own)
    task = asyncio.ensure_future(environment.run({"loadbalancer": LoadBalancerController(environment, "kube-system")}))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await own.close()
