"""Workloads, scheduler and slices together, against the real API server."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.kube.resources import (
    CONFIGMAPS,
    DAEMONSETS,
    DEPLOYMENTS,
    ENDPOINTS,
    ENDPOINTSLICES,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    REPLICASETS,
    SERVICES,
    STATEFULSETS,
    Resource,
)
from podwire.model.service import EndpointSlice

JsonObject = dict[str, Any]


def workload(kind: str, name: str, replicas: int = 3, image: str = "a", **spec: Any) -> JsonObject:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": image, "ports": [{"name": "http", "containerPort": 80}]}]},
    }
    body = {"selector": {"matchLabels": labels}, "template": template} | spec
    if kind != "DaemonSet":
        body["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": body}


def service(name: str, **spec: Any) -> JsonObject:
    body = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]} | spec
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


async def available(p: ControlPlane, name: str, replicas: int, resource: Resource[Any] = DEPLOYMENTS) -> JsonObject:
    async def probe() -> JsonObject | None:
        item = await p.client.get(resource, name, "default")
        status = item.get("status", {})
        fresh = status.get("observedGeneration") == item["metadata"]["generation"]
        numbers = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
        return item if fresh and numbers == [replicas] * 3 else None

    return await p.until(probe)


def test_a_deployment_becomes_available_and_its_service_has_endpoints(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            await p.client.create(SERVICES, service("web"), "default")
            await p.client.create(DEPLOYMENTS, workload("Deployment", "web"), "default")
            item = await available(p, "web", 3)
            conditions = {c["type"]: (c["status"], c["reason"]) for c in item["status"]["conditions"]}
            assert conditions["Available"] == ("True", "MinimumReplicasAvailable")
            assert conditions["Progressing"] == ("True", "NewReplicaSetAvailable")
            pods = (await p.client.list(PODS, "default")).items
            assert sorted(pod.spec.node_name for pod in pods) == ["node-1", "node-2", "node-3"]

            async def slices() -> Sequence[EndpointSlice] | None:
                chosen = "kubernetes.io/service-name=web"
                result = await p.client.list(ENDPOINTSLICES, "default", label_selector=chosen)
                ready = [e for s in result.items for e in s.endpoints or () if e.conditions.ready]
                return result.items if len(ready) == 3 and len(result.items) == 1 else None  # the empty one goes

            (only,) = await p.until(slices)
            assert only.ports and only.ports[0].port == 80
            assert {e.target_ref and e.target_ref.name for e in only.endpoints or ()} == {
                pod.metadata.name for pod in pods
            }
            assert "endpoints.kubernetes.io/last-change-trigger-time" in only.metadata.annotations

            async def mirrored() -> bool | None:
                result = await p.client.get(ENDPOINTS, "web", "default")
                return len(result["subsets"][0].get("addresses", [])) == 3 if result.get("subsets") else None

            await p.until(mirrored)
            nodes = (await p.client.list(NODES)).items
            assert sorted(n.spec.pod_cidr for n in nodes) == ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"]

            async def root_ca() -> bool:
                names = {
                    (m["metadata"]["namespace"], m["metadata"]["name"]) for m in (await p.client.list(CONFIGMAPS)).items
                }
                return ("default", "kube-root-ca.crt") in names

            await p.until(root_ca)
            reasons = {e["reason"] for e in (await p.client.list(EVENTS, "default")).items}
            assert reasons >= {"ScalingReplicaSet", "SuccessfulCreate", "Scheduled"}

    asyncio.run(run())


def test_rolling_update_undo_and_scale(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            await p.client.create(DEPLOYMENTS, workload("Deployment", "web", 4), "default")
            await available(p, "web", 4)
            first = (await p.client.list(REPLICASETS, "default")).items[0].metadata.name
            await p.client.patch(DEPLOYMENTS, "web", workload("Deployment", "web", 4, "b"), "default")
            item = await available(p, "web", 4)
            assert item["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
            sets = {s.metadata.name: s.spec.replicas for s in (await p.client.list(REPLICASETS, "default")).items}
            assert sets.pop(first) == 0
            assert list(sets.values()) == [4]
            await p.client.patch(DEPLOYMENTS, "web", workload("Deployment", "web", 4, "a"), "default")
            item = await available(p, "web", 4)
            assert item["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"
            assert len((await p.client.list(REPLICASETS, "default")).items) == 2
            await p.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, "default")
            await available(p, "web", 1)
            await p.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, "default")
            await available(p, "web", 0)

    asyncio.run(run())


def test_daemonset_statefulset_and_job(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2) as p:
            await p.client.create(DAEMONSETS, workload("DaemonSet", "agent"), "default")
            await p.client.create(STATEFULSETS, workload("StatefulSet", "db", 2, serviceName="db"), "default")
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "once"},
                "spec": {
                    "completions": 3,
                    "parallelism": 2,
                    "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}},
                },
            }
            p.nodes.outcome["once"] = "Succeeded"
            await p.client.create(JOBS, job, "default")

            async def daemons() -> bool:
                status = (await p.client.get(DAEMONSETS, "agent", "default")).get("status", {})
                return (status.get("numberAvailable"), status.get("updatedNumberScheduled")) == (2, 2)

            await p.until(daemons)
            await available(p, "db", 2, STATEFULSETS)

            async def complete() -> JsonObject | None:
                status = (await p.client.get(JOBS, "once", "default")).get("status", {})
                return status if any(c["type"] == "Complete" for c in status.get("conditions", [])) else None

            assert (await p.until(complete))["succeeded"] == 3
            pods = {pod.metadata.name: pod for pod in (await p.client.list(PODS, "default")).items}
            assert pods["db-0"].spec.hostname == "db-0"
            assert pods["db-1"].spec.subdomain == "db"
            changed = workload("StatefulSet", "db", 2, "b", serviceName="db")
            await p.client.patch(STATEFULSETS, "db", changed, "default")
            await p.client.patch(DAEMONSETS, "agent", workload("DaemonSet", "agent", image="b"), "default")
            item = await available(p, "db", 2, STATEFULSETS)
            assert item["status"]["currentRevision"] == item["status"]["updateRevision"]

            async def rolled() -> bool:
                status = (await p.client.get(DAEMONSETS, "agent", "default"))["status"]
                return (status.get("numberAvailable"), status.get("updatedNumberScheduled")) == (2, 2)

            await p.until(rolled)
            images = [
                pod.spec.containers[0].image
                for pod in (await p.client.list(PODS, "default")).items
                if not pod.metadata.name.startswith("once") and not pod.metadata.deletion_timestamp
            ]
            assert images == ["b"] * 4

    asyncio.run(run())


def test_unschedulable_pod_names_the_reason_and_is_bound_later(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            pod = {
                "metadata": {"name": "a"},
                "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c", "image": "x"}]},
            }
            await p.client.create(PODS, pod, "default")

            async def refused() -> JsonObject | None:
                result = await p.client.get(PODS, "a", "default")
                return next(
                    (
                        c
                        for c in result.get("status", {}).get("conditions", [])
                        if c["type"] == "PodScheduled" and c["status"] == "False"
                    ),
                    None,
                )

            condition = await p.until(refused)
            assert condition["reason"] == "Unschedulable"
            assert condition["message"].startswith(
                "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            )
            await p.client.patch(NODES, "node-2", {"metadata": {"labels": {"disk": "ssd"}}})

            async def bound() -> bool:
                spec = (await p.client.get(PODS, "a", "default"))["spec"]
                return bool(spec.get("nodeName") == "node-2")

            await p.until(bound)

    asyncio.run(run())


def test_a_hundred_pods_at_once(plane: StartControlPlane) -> None:
    """Everything in one process, nodes included; 0.4 s on an idle machine."""

    async def run() -> None:
        async with plane() as p:
            await p.client.create(DEPLOYMENTS, workload("Deployment", "web", 100), "default")
            await available(p, "web", 100)

    asyncio.run(run())
