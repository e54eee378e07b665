"""Services against the real API server: load balancers, slices that change their owner, hand-written Endpoints."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.cluster.names import SERVICE_BALANCER
from podwire.controllers.service.balancer import LoadBalancer
from podwire.controllers.service.controller import ServiceController
from podwire.controllers.service.plan import FINALIZER
from podwire.errors import ConfigError, LoadBalancerError, NotFound
from podwire.kube.controller import Environment
from podwire.kube.resources import DEPLOYMENTS, ENDPOINTS, ENDPOINTSLICES, EVENTS, NODES, PODS, SERVICES
from podwire.local.controllers import LocalControllerConfig
from podwire.model.service import EndpointSlice, LoadBalancerIngress, Service

WITHOUT = LocalControllerConfig(parts=("endpointslice", "endpointslicemirroring", "nodeipam"))
ZONE = "topology.kubernetes.io/zone"

JsonObject = dict[str, Any]


class Addresses:
    """A balancer that gives out numbered addresses and remembers what it was asked."""

    def __init__(self, name: str = "l2", load_balancer_class: str = "") -> None:
        self.name = name
        self.load_balancer_class = load_balancer_class
        self.given: dict[str, str] = {}
        self.calls: list[str] = []
        self.failure = ""
        self.changed: Callable[[str], None] = lambda key: None

    def watch(self, changed: Callable[[str], None]) -> None:
        self.changed = changed

    async def ensure(self, service: Service) -> tuple[LoadBalancerIngress, ...]:
        key = f"{service.metadata.namespace}/{service.metadata.name}"
        self.calls.append(f"ensure {key}")
        assert FINALIZER in service.metadata.finalizers
        if self.failure:
            raise LoadBalancerError(self.failure)
        self.given.setdefault(key, f"192.0.2.{len(self.given) + 1}")
        return (LoadBalancerIngress(ip=self.given[key]),)

    async def release(self, service: Service) -> None:
        key = f"{service.metadata.namespace}/{service.metadata.name}"
        self.calls.append(f"release {key}")
        if self.failure:
            raise LoadBalancerError(self.failure)
        self.given.pop(key, None)


@contextlib.asynccontextmanager
async def serving(p: ControlPlane, *balancers: LoadBalancer) -> AsyncIterator[None]:
    environment = Environment(p.client)
    part = ServiceController(environment, balancers)
    task = asyncio.ensure_future(environment.run({"service": part}))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def service(name: str = "web", kind: str = "LoadBalancer", **spec: Any) -> JsonObject:
    body = {"type": kind, "selector": {"app": name}, "ports": [{"port": 80}]} | spec
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


def ingress(item: JsonObject) -> list[str]:
    return [entry["ip"] for entry in item["status"].get("loadBalancer", {}).get("ingress", [])]


async def addressed(p: ControlPlane, name: str = "web") -> list[str]:
    async def probe() -> list[str]:
        return ingress(await p.client.get(SERVICES.raw, name, "default"))

    return await p.until(probe)


async def reasons(p: ControlPlane, name: str = "web") -> set[str]:
    result = (await p.client.list(EVENTS, "default")).items
    return {e["reason"] for e in result if e["involvedObject"]["name"] == name}


async def told(p: ControlPlane, *expected: str, name: str = "web") -> None:
    async def probe() -> bool:
        return await reasons(p, name) >= set(expected)

    await p.until(probe)


async def gone(p: ControlPlane, name: str = "web") -> None:
    async def probe() -> bool:
        try:
            await p.client.get(SERVICES.raw, name, "default")
        except NotFound:
            return True
        return False

    await p.until(probe)


def test_an_address_is_given_and_taken_back(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p:
            balancer = Addresses()
            async with serving(p, balancer):
                await p.client.create(SERVICES, service(), "default")
                assert await addressed(p) == ["192.0.2.1"]
                item = await p.client.get(SERVICES.raw, "web", "default")
                assert item["metadata"]["finalizers"] == [FINALIZER]
                assert item["metadata"]["annotations"][SERVICE_BALANCER] == "l2"
                await told(p, "EnsuringLoadBalancer", "EnsuredLoadBalancer")
                # What the balancer gives may change by itself.
                balancer.given["default/web"] = "192.0.2.77"
                balancer.changed("default/web")

                async def moved() -> bool:
                    return ingress(await p.client.get(SERVICES.raw, "web", "default")) == ["192.0.2.77"]

                await p.until(moved)
                await p.client.delete(SERVICES, "web", "default")
                await gone(p)
                assert balancer.given == {}
                await told(p, "DeletingLoadBalancer", "DeletedLoadBalancer")
                assert "SyncLoadBalancerFailed" not in await reasons(p)

    asyncio.run(run())


def test_a_change_of_type_takes_the_address_back(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p:
            balancer = Addresses()
            async with serving(p, balancer):
                await p.client.create(SERVICES, service(), "default")
                await addressed(p)
                await p.client.patch(SERVICES, "web", {"spec": {"type": "ClusterIP"}}, "default")

                async def bare() -> bool:
                    item = await p.client.get(SERVICES.raw, "web", "default")
                    meta = item["metadata"]
                    return not ingress(item) and "finalizers" not in meta and "annotations" not in meta

                await p.until(bare)
                assert balancer.given == {}
                await p.client.patch(SERVICES, "web", {"spec": {"type": "LoadBalancer"}}, "default")
                assert await addressed(p) == ["192.0.2.1"]

    asyncio.run(run())


def test_without_a_balancer_services_wait_and_are_not_touched(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p, serving(p):
            clouds = service("cloud") | {"metadata": {"name": "cloud", "finalizers": [FINALIZER]}}
            await p.client.create(SERVICES, clouds, "default")
            created = await p.client.create(SERVICES.raw, service(), "default")
            await p.client.delete(SERVICES, "cloud", "default")
            await asyncio.sleep(0.3)
            result = await p.client.get(SERVICES.raw, "web", "default")
            assert result["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
            going = await p.client.get(SERVICES.raw, "cloud", "default")
            assert going["metadata"]["finalizers"] == [FINALIZER]
            assert await reasons(p) == set()
            accept = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
            answer = await p.client.raw("GET", "/api/v1/namespaces/default/services/web", headers=accept)
            assert b"<pending>" in answer.body

    asyncio.run(run())


def test_each_class_has_its_balancer(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p:
            usual, other = Addresses(), Addresses("bgp", "example.com/bgp")
            async with serving(p, usual, other):
                await p.client.create(SERVICES, service("a"), "default")
                await p.client.create(SERVICES, service("b", loadBalancerClass="example.com/bgp"), "default")
                await p.client.create(SERVICES, service("c", loadBalancerClass="example.com/else"), "default")
                await addressed(p, "a")
                await addressed(p, "b")
                assert (set(usual.given), set(other.given)) == ({"default/a"}, {"default/b"})
                remaining = await p.client.get(SERVICES.raw, "c", "default")
                assert "finalizers" not in remaining["metadata"]
            with pytest.raises(ConfigError, match="l2 and l3 both serve the class ''"):
                ServiceController(Environment(p.client), (Addresses(), Addresses("l3")))

    asyncio.run(run())


def test_failed_operation_is_reported_and_retried(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p:
            balancer = Addresses()
            balancer.failure = "no address is left"
            async with serving(p, balancer):
                await p.client.create(SERVICES, service(), "default")
                await told(p, "SyncLoadBalancerFailed")
                event = next(
                    e for e in (await p.client.list(EVENTS, "default")).items if e["reason"] == "SyncLoadBalancerFailed"
                )
                assert event["message"] == "Error syncing load balancer: no address is left"
                assert (event["type"], event["source"]["component"]) == ("Warning", "service-controller")
                balancer.failure = ""
                balancer.changed("default/web")
                await addressed(p)
                balancer.failure = "the router does not answer"
                await p.client.delete(SERVICES, "web", "default")
                await asyncio.sleep(0.2)
                remaining = await p.client.get(SERVICES.raw, "web", "default")
                assert remaining["metadata"]["finalizers"] == [FINALIZER]
                assert ingress(remaining) == ["192.0.2.1"]
                balancer.failure = ""
                balancer.changed("default/web")
                await gone(p)

    asyncio.run(run())


def test_restart_continues_and_missing_balancer_blocks_no_deletion(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p:
            balancer = Addresses()
            async with serving(p, balancer):
                await p.client.create(SERVICES, service(), "default")
                await p.client.create(SERVICES, service("other"), "default")
                await addressed(p)
                await addressed(p, "other")
            await p.client.delete(SERVICES, "other", "default")
            balancer.calls.clear()
            async with serving(p, balancer):
                await gone(p, "other")
                assert "release default/other" in balancer.calls
                assert await addressed(p) == [balancer.given["default/web"]]
            async with serving(p):
                await asyncio.sleep(0.2)
                remaining = await p.client.get(SERVICES.raw, "web", "default")
                assert ingress(remaining) == [balancer.given["default/web"]]
                await p.client.delete(SERVICES, "web", "default")
                await gone(p)

    asyncio.run(run())


# --- slices


async def slices(p: ControlPlane, name: str = "web") -> Sequence[EndpointSlice]:
    result = await p.client.list(ENDPOINTSLICES, "default", label_selector=f"kubernetes.io/service-name={name}")
    return result.items


def deployment(name: str, replicas: int, **labels: str) -> JsonObject:
    labels = {"app": name, **labels}
    container = {"name": "c", "image": "a", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def endpoints(p: ControlPlane, count: int, name: str = "web") -> EndpointSlice:
    """The one slice, when it has so many ready endpoints."""

    async def probe() -> EndpointSlice | None:
        result = await slices(p, name)
        ready = [e for s in result for e in s.endpoints or () if e.conditions.ready]
        return result[0] if len(result) == 1 and len(ready) == count else None

    return await p.until(probe)


def test_slices_of_an_earlier_service_go_and_follow_the_selector(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            await p.client.create(DEPLOYMENTS, deployment("web", 2, tier="a"), "default")
            await p.client.create(DEPLOYMENTS, deployment("other", 3, tier="a"), "default")
            await p.client.create(SERVICES, service(kind="ClusterIP"), "default")
            first = await endpoints(p, 2)
            await p.client.patch(SERVICES, "web", {"spec": {"selector": {"app": None, "tier": "a"}}}, "default")
            assert (await endpoints(p, 5)).metadata.name == first.metadata.name
            # A slice that says it is of another Service of this name.
            stale = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "web-stale",
                    "labels": dict(first.metadata.labels),
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "of-before"}],
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["192.0.2.9"]}],
                "ports": [{"port": 80}],
            }
            with contextlib.suppress(NotFound):  # the garbage collector may be as fast
                await p.client.create(ENDPOINTSLICES, stale, "default")
            await endpoints(p, 5)
            await p.client.patch(SERVICES, "web", {"spec": {"selector": {"app": "nobody", "tier": None}}}, "default")

            async def none() -> Sequence[EndpointSlice] | None:
                result = await slices(p)
                return result if len(result) == 1 and not result[0].endpoints else None

            (empty,) = await p.until(none)
            assert "endpoints.kubernetes.io/last-change-trigger-time" not in empty.metadata.annotations

    asyncio.run(run())


def test_hints_by_size_come_and_go_as_events(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2) as p:
            for number in (1, 2):
                patch = {"metadata": {"labels": {ZONE: f"z{number}"}}}
                await p.client.patch(NODES, f"node-{number}", patch)
            auto = service(kind="ClusterIP")
            auto["metadata"]["annotations"] = {"service.kubernetes.io/topology-mode": "Auto"}
            await p.client.create(SERVICES, auto, "default")
            await p.client.create(DEPLOYMENTS, deployment("web", 4), "default")

            def zones(item: EndpointSlice) -> list[str]:
                return sorted(t.name for e in item.endpoints or () for t in (e.hints.for_zones if e.hints else ()))

            async def hinted() -> bool:
                result = await slices(p)
                return len(result) == 1 and zones(result[0]) == ["z1", "z1", "z2", "z2"]

            await p.until(hinted)
            await told(p, "TopologyAwareHintsEnabled")
            await p.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, "default")

            async def bare() -> bool:
                result = await slices(p)
                return len(result) == 1 and len(result[0].endpoints or ()) == 1 and not zones(result[0])

            await p.until(bare)
            await told(p, "TopologyAwareHintsDisabled")
            messages = [e["message"] for e in (await p.client.list(EVENTS, "default")).items]
            assert "Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4" in messages

    asyncio.run(run())


async def publish_unready(p: ControlPlane) -> str:
    """Creates two pods, a Service that publishes pods that are not ready, and ``strict``; the name of a pod."""
    await p.client.create(SERVICES, service(kind="ClusterIP", publishNotReadyAddresses=True), "default")
    await p.client.create(SERVICES, service("strict", "ClusterIP", selector={"app": "web"}), "default")
    await p.client.create(DEPLOYMENTS, deployment("web", 2), "default")
    await endpoints(p, 2)
    strict = await endpoints(p, 2, "strict")
    assert strict.endpoints and strict.endpoints[0].target_ref
    return strict.endpoints[0].target_ref.name


def test_evicted_pod_leaves_the_slice(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2) as p:
            victim = await publish_unready(p)
            status = {"status": {"phase": "Failed", "reason": "Evicted"}}
            await p.client.patch(PODS, victim, status, "default", subresource="status")

            async def without() -> bool:
                both = [await slices(p), await slices(p, "strict")]
                names = {
                    e.target_ref and e.target_ref.name for result in both for s in result for e in s.endpoints or ()
                }
                return victim not in names

            await p.until(without)

    asyncio.run(run())


def test_a_published_pod_stays_ready_when_it_becomes_unready(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2) as p:
            victim = await publish_unready(p)
            conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}]
            body = {"status": {"conditions": conditions}}
            await p.client.patch(PODS, victim, body, "default", subresource="status")

            async def readiness(name: str) -> dict[str, tuple[bool, bool]]:
                return {
                    e.target_ref.name: (bool(e.conditions.ready), bool(e.conditions.serving))
                    for endpoint_slice in await slices(p, name)
                    for e in endpoint_slice.endpoints or ()
                    if e.target_ref is not None
                }

            async def unready() -> bool:
                return (await readiness("strict"))[victim] == (False, False)

            async def published() -> bool:
                return (await readiness("web"))[victim] == (True, False)

            await p.until(unready)
            await p.until(published)

    asyncio.run(run())


def test_annotations_of_endpoints_by_hand_come_along(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(config=WITHOUT) as p:
            await p.client.create(SERVICES, service(kind="ClusterIP", selector=None), "default")
            by_hand = {
                "apiVersion": "v1",
                "kind": "Endpoints",
                "metadata": {"name": "web", "annotations": {"team": "a"}},
                "subsets": [{"addresses": [{"ip": "192.0.2.5"}], "ports": [{"port": 80}]}],
            }
            await p.client.create(ENDPOINTS, by_hand, "default")
            assert (await endpoints(p, 1)).metadata.annotations == {"team": "a"}
            await p.client.patch(ENDPOINTS, "web", {"metadata": {"annotations": {"team": "b"}}}, "default")

            async def followed() -> bool:
                return [s.metadata.annotations for s in await slices(p)] == [{"team": "b"}]

            await p.until(followed)

    asyncio.run(run())
