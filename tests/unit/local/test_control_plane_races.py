"""Answers that are lost, and changes that come before or after what they follow from."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.embedded.workloads.nodelifecycle import NodeTimes
from podwire.errors import ApiUnreachable
from podwire.kube.informer import Informer
from podwire.kube.resources import (
    CONTROLLERREVISIONS,
    DAEMONSETS,
    LEASES,
    NODES,
    PODDISRUPTIONBUDGETS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    Resource,
)
from podwire.local.controllers import LocalControllerConfig
from podwire.model.pod import Pod

JsonObject = dict[str, Any]
LABELS = {"app": "web"}


def containers(**requests: str) -> JsonObject:
    return {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}


def workload(**spec: Any) -> JsonObject:
    template = {"metadata": {"labels": LABELS}, "spec": containers()}
    return {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": LABELS}, "template": template} | spec}


def pod(name: str, labels: dict[str, str] = LABELS, **spec: Any) -> JsonObject:
    return {"metadata": {"name": name, "labels": labels}, "spec": containers() | spec}


async def names(p: ControlPlane, test: Callable[[Pod], Any] = lambda pod: True) -> set[str]:
    return {pod.metadata.name for pod in (await p.client.list(PODS, "default")).items if test(pod)}


async def quiet() -> None:
    """Until nothing is on its way that would have things looked at anyway."""
    await asyncio.sleep(0.5)


async def settled(p: ControlPlane, expected: int, test: Callable[[Pod], Any] = lambda pod: True) -> set[str]:
    async def probe() -> set[str] | None:
        result = await names(p, test)
        return result if len(result) == expected else None

    return await p.until(probe)


def lost(
    p: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    times: int,
    concerns: Callable[[Resource[Any], dict[str, Any]], bool],
    *,
    done: bool = False,
) -> list[int]:
    """Some requests come to nothing, or (``done``) are done and the answer does not arrive."""
    real, remaining = getattr(p.client, verb), [times]

    async def failing(resource: Resource[Any], *args: Any, **how: Any) -> Any:
        if not remaining[0] or not concerns(resource, how):
            return await real(resource, *args, **how)
        remaining[0] -= 1
        if done:
            await real(resource, *args, **how)
            await asyncio.sleep(0.1)  # its event is there by now
        raise ApiUnreachable("the connection was reset")

    monkeypatch.setattr(p.client, verb, failing)
    return remaining


@pytest.mark.parametrize("resource", [REPLICASETS, STATEFULSETS], ids=lambda resource: resource.plural)
def test_failed_pod_deletion_is_retried(
    plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch, resource: Resource[Any]
) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            await p.client.create(resource, workload(replicas=2), "default")
            await settled(p, 2, lambda pod: pod.ready)
            remaining = lost(p, monkeypatch, "delete", 2, lambda resource, how: resource is PODS)
            await p.client.patch(resource, "web", {"spec": {"replicas": 1}}, "default")
            await settled(p, 1)
            assert remaining == [0]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("resource", "more", "name"),
    [(DAEMONSETS, {}, "any"), (STATEFULSETS, {"replicas": 1}, "web-0")],
    ids=["daemonset", "statefulset"],
)
def test_adopted_object_is_not_created_again(
    plane: StartControlPlane, resource: Resource[Any], more: JsonObject, name: str
) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            await p.client.create(PODS, pod(name), "default")
            await settled(p, 1, lambda pod: pod.ready)
            informer = Informer(p.client, PODS)
            created: list[str] = []
            informer.subscribe(lambda key, old, new: created.append(key) if old is None else None)
            watching = asyncio.ensure_future(informer.run())
            await informer.synced.wait()
            await p.client.create(resource, workload(updateStrategy={"type": "OnDelete"}, **more), "default")
            await settled(p, 1, lambda pod: pod.metadata.owner_references)

            async def counted() -> bool:
                status = (await p.client.get(resource, "web", "default")).get("status") or {}
                return status.get("currentNumberScheduled", status.get("replicas")) == 1

            await p.until(counted)
            assert created == [f"default/{name}"]
            watching.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("resource", "body", "name"),
    [(DAEMONSETS, workload(), "late"), (STATEFULSETS, workload(replicas=1), "web-7")],
    ids=["daemonset", "statefulset"],
)
def test_an_orphan_that_comes_later_is_taken_care_of(
    plane: StartControlPlane, resource: Resource[Any], body: JsonObject, name: str
) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            await p.client.create(PODS, pod(name, {"app": "other"}), "default")
            await p.client.create(resource, body, "default")
            await settled(p, 2, lambda pod: pod.ready)
            await quiet()
            await p.client.patch(PODS, name, {"metadata": {"labels": LABELS}}, "default")
            # It is one too many then: of the two, one goes.
            await settled(p, 1)

    asyncio.run(run())


def test_a_budget_follows_labels_and_replicas_by_themselves(
    plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            budget = {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}
            await p.client.create(PODDISRUPTIONBUDGETS, {"metadata": {"name": "b"}, "spec": budget}, "default")
            await p.client.create(PODS, pod("lone"), "default")
            await p.client.create(REPLICASETS, workload(replicas=1, selector={"matchLabels": LABELS | {"x": "y"}},
                template={"metadata": {"labels": LABELS | {"x": "y"}}, "spec": containers()}), "default")  # fmt: skip

            async def says(healthy: int, desired: int) -> None:
                async def probe() -> bool:
                    status = (await p.client.get(PODDISRUPTIONBUDGETS, "b", "default")).get("status") or {}
                    return (status.get("currentHealthy"), status.get("desiredHealthy")) == (healthy, desired)

                await p.until(probe)

            await says(2, 1)
            await quiet()
            await p.client.patch(PODS, "lone", {"metadata": {"labels": {"app": "other"}}}, "default")
            await says(1, 0)
            await quiet()
            lost(p, monkeypatch, "create", 1000, lambda resource, how: resource is PODS)
            await p.client.patch(REPLICASETS, "web", {"spec": {"replicas": 4}}, "default")
            await says(1, 3)

    asyncio.run(run())


def test_all_pods_of_a_lost_node_are_marked_despite_failures(
    plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with plane(nodes=1, config=LocalControllerConfig(node_times=NodeTimes(grace_s=2.0))) as p:
            await p.client.create(LEASES, {"metadata": {"name": "node-1"}}, "kube-node-lease")
            for name in ("one", "two"):
                forever = {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}
                await p.client.create(PODS, pod(name, tolerations=[forever], nodeName="node-1"), "default")
            remaining = lost(p, monkeypatch, "patch", 1, lambda resource, how: resource is PODS)

            async def unready() -> bool:
                conditions = (await p.client.get(NODES, "node-1"))["status"]["conditions"]
                given_up = {c["type"]: c["status"] for c in conditions}["Ready"] == "Unknown"
                return given_up and not await names(p, lambda pod: pod.ready)

            await p.until(unready)
            assert remaining == [0]

    asyncio.run(run())


def test_a_binding_whose_answer_is_lost_counts(plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            remaining = lost(p, monkeypatch, "create", 1, lambda _, how: how.get("subresource") == "binding", done=True)
            await p.client.create(PODS, pod("one", **containers(cpu="3")), "default")
            await settled(p, 1, lambda pod: pod.ready)

            async def answered() -> bool:
                return remaining == [0]

            await p.until(answered)
            await asyncio.sleep(0.3)
            await p.client.create(PODS, pod("two", **containers(cpu="3")), "default")

            async def refused() -> list[str]:
                conditions = (await p.client.get(PODS, "two", "default"))["status"].get("conditions", ())
                return [c["reason"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]

            assert await p.until(refused) == ["Unschedulable"]
            assert await names(p, lambda pod: pod.spec.node_name) == {"one"}

    asyncio.run(run())


def test_recreated_set_adopts_its_orphans_every_time(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            for _ in range(4):
                saved = await p.client.create(STATEFULSETS, workload(replicas=1), "default")

                def of_this_one(pod: Pod, uid: str = saved["metadata"]["uid"]) -> bool:
                    return [owner.uid for owner in pod.metadata.owner_references] == [uid] and pod.ready

                assert await settled(p, 1, of_this_one) == {"web-0"}
                await p.client.delete(STATEFULSETS, "web", "default", propagation="Orphan")
                assert await settled(p, 1, lambda pod: not pod.metadata.owner_references) == {"web-0"}
            revisions = (await p.client.list(CONTROLLERREVISIONS, "default")).items
            assert len(revisions) == 1

    asyncio.run(run())
