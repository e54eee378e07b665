"""Nodes that fall silent or go, adoption, missed schedules, and an API that is away for a moment."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.embedded.workloads.nodelifecycle import NodeTimes
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.lease import Election, LeaderElection
from podwire.kube.resources import (
    CRONJOBS,
    DEPLOYMENTS,
    ENDPOINTSLICES,
    EVENTS,
    JOBS,
    LEASES,
    NODES,
    PODDISRUPTIONBUDGETS,
    PODS,
    REPLICASETS,
    SERVICES,
)
from podwire.local.controllers import LocalControllerConfig
from podwire.model.pod import Pod
from podwire.model.workload import Job
from podwire.runtime.clock import rfc3339_micro

JsonObject = dict[str, Any]
CONTAINERS = [{"name": "c", "image": "i"}]


def deployment(name: str, replicas: int = 2, image: str = "i", **spec: Any) -> JsonObject:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}
    body = {"selector": {"matchLabels": labels}, "template": template, "replicas": replicas} | spec
    return {"metadata": {"name": name}, "spec": body}


async def pods_where(p: ControlPlane, test: Callable[[Pod], Any], count: int) -> list[Pod]:
    async def probe() -> list[Pod] | None:
        results = [pod for pod in (await p.client.list(PODS, "default")).items if test(pod)]
        return results if len(results) == count else None

    return await p.until(probe)


def test_a_silent_node_loses_its_endpoints_and_then_its_pods(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2, config=LocalControllerConfig(node_times=NodeTimes(grace_s=3.0))) as p:
            unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}
            tolerations = [
                unreachable | {"effect": "NoExecute", "tolerationSeconds": 1},
            ]
            web = deployment("web")
            web["spec"]["template"]["spec"]["tolerations"] = tolerations
            await p.client.create(
                SERVICES,
                {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}},
                "default",
            )
            beating = True

            async def beat() -> None:
                while True:
                    names = ["node-1", "node-2"] if beating else ["node-2"]
                    for name in names:
                        spec = {"spec": {"renewTime": rfc3339_micro(p.client.clock.now())}}
                        await p.client.patch(LEASES, name, spec, "kube-node-lease")
                    await asyncio.sleep(0.1)

            for name in ("node-1", "node-2"):
                await p.client.create(LEASES, {"metadata": {"name": name}}, "kube-node-lease")
            heart = asyncio.ensure_future(beat())
            await p.client.create(DEPLOYMENTS, web, "default")
            await pods_where(p, lambda pod: pod.ready, 2)
            beating = False

            async def unready() -> bool:
                slices = (await p.client.list(ENDPOINTSLICES, "default")).items
                ready = [e.node_name for s in slices for e in s.endpoints or () if e.target_ref and e.conditions.ready]
                return ready == ["node-2"]

            await p.until(unready)

            async def tainted() -> set[str]:
                node = await p.client.get(NODES, "node-1")
                return {taint["key"] for taint in node["spec"].get("taints", ())}

            assert await p.until(tainted) == {"node.kubernetes.io/unreachable"}
            await pods_where(p, lambda pod: pod.ready and pod.spec.node_name == "node-2", 2)
            beating = True

            async def cleared() -> bool:
                await p.client.patch(
                    NODES,
                    "node-1",
                    {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
                    subresource="status",
                )
                return not (await p.client.get(NODES, "node-1"))["spec"].get("taints")

            await p.until(cleared)
            heart.cancel()

    asyncio.run(run())


def test_pods_that_a_taint_evicts_are_disruption_targets(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            await p.client.create(DEPLOYMENTS, deployment("web", 1), "default")
            await pods_where(p, lambda pod: pod.ready, 1)
            informer = Informer(p.client, PODS)
            reasons: set[str] = set()

            def note(_key: str, _old: Pod | None, new: Pod | None) -> None:
                reasons.update(c.reason for c in new.status.conditions if c.type == "DisruptionTarget") if new else None

            informer.subscribe(note)
            watching = asyncio.ensure_future(informer.run())
            await informer.synced.wait()
            taint = {"spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}}
            await p.client.patch(NODES, "node-1", taint)

            async def told() -> bool:
                return reasons == {"DeletionByTaintManager"}

            await p.until(told)
            watching.cancel()

    asyncio.run(run())


def test_nodes_stay_ready_while_the_api_is_away(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2, config=LocalControllerConfig(node_times=NodeTimes(grace_s=5.0, contact_s=0.1))) as p:
            for name in ("node-1", "node-2"):
                await p.client.create(LEASES, {"metadata": {"name": name}}, "kube-node-lease")
            informer = Informer(p.client, NODES)
            lost: list[str] = []
            informer.subscribe(lambda name, _old, node: None if node is None or node.ready else lost.append(name))
            watching = asyncio.ensure_future(informer.run())
            await informer.synced.wait()

            async def beat(*names: str) -> None:
                for name in names:
                    spec = {"spec": {"renewTime": rfc3339_micro(p.client.clock.now())}}
                    await p.client.patch(LEASES, name, spec, "kube-node-lease")

            await beat("node-1", "node-2")
            await p.restart(6.0)
            # The nodes take some of the time that they have to say that they are there.
            await asyncio.sleep(1.5)
            assert lost == []

            async def given_up() -> list[str]:
                await beat("node-1")
                return lost

            await p.until(given_up)
            assert set(lost) == {"node-2"}, "the one that stays silent is given up when its time is over"
            watching.cancel()

    asyncio.run(run())


def test_pods_of_a_deleted_node_are_collected(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2, config=LocalControllerConfig(node_times=NodeTimes(missing_s=0.3))) as p:
            await p.client.create(DEPLOYMENTS, deployment("web", 4), "default")
            await pods_where(p, lambda pod: pod.ready, 4)
            p.nodes.names.remove("node-1")
            await p.client.delete(NODES, "node-1")
            await pods_where(p, lambda pod: pod.ready and pod.spec.node_name == "node-2", 4)
            assert len((await p.client.list(PODS, "default")).items) == 4

    asyncio.run(run())


def test_an_orphan_is_adopted_and_a_relabelled_pod_released(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            orphan = {
                "metadata": {"name": "orphan", "labels": {"app": "web"}},
                "spec": {"containers": CONTAINERS},
            }
            await p.client.create(PODS, orphan, "default")
            await pods_where(p, lambda pod: pod.spec.node_name, 1)  # the control plane has seen it
            body = deployment("web", 2)
            rs = {"metadata": {"name": "web"}, "spec": body["spec"]}
            await p.client.create(REPLICASETS, rs, "default")
            pods = await pods_where(p, lambda pod: pod.metadata.owner_references, 2)
            assert "orphan" in {pod.metadata.name for pod in pods}
            await p.client.patch(PODS, "orphan", {"metadata": {"labels": {"app": "debug"}}}, "default")

            async def released() -> bool:
                result = await p.client.get(PODS, "orphan", "default")
                return "ownerReferences" not in result["metadata"]

            await p.until(released)
            await pods_where(p, lambda pod: pod.metadata.owner_references, 2)

    asyncio.run(run())


async def counted(p: ControlPlane, ready: int) -> bool:
    status = (await p.client.get(REPLICASETS, "web", "default"))["status"]
    return bool(status.get("readyReplicas") == ready)


def test_pod_relabelled_out_of_its_set_is_replaced(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            body = deployment("web", 2)["spec"]
            await p.client.create(REPLICASETS, {"metadata": {"name": "web"}, "spec": body}, "default")
            used = (await pods_where(p, lambda pod: pod.ready, 2))[0].metadata.name
            await p.until(partial(counted, p, 2))
            await asyncio.sleep(0.2)  # nothing is on its way that would have the set looked at anyway
            patch = {"metadata": {"ownerReferences": [], "labels": {"app": "debug"}}}
            await p.client.patch(PODS, used, patch, "default")
            owned = await pods_where(p, lambda pod: pod.metadata.owner_references and pod.ready, 2)
            assert used not in {pod.metadata.name for pod in owned}

    asyncio.run(run())


def test_recreate_never_runs_two_versions(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1, delay_s=0.05) as p:
            first = deployment("web", 3, "one", strategy={"type": "Recreate"})
            await p.client.create(DEPLOYMENTS, first, "default")
            await pods_where(p, lambda pod: pod.ready, 3)
            second = deployment("web", 3, "two", strategy={"type": "Recreate"})
            await p.client.patch(DEPLOYMENTS, "web", second, "default")

            async def probe() -> bool:
                pods = (await p.client.list(PODS, "default")).items
                images = [pod.spec.containers[0].image for pod in pods]
                assert len(set(images)) <= 1
                return images == ["two"] * 3 and all(pod.ready for pod in pods)

            await p.until(probe)

    asyncio.run(run())


def test_missed_schedule_starts_one_job_and_budget_is_kept(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1) as p:
            template = {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": CONTAINERS}}}}
            cron = {
                "metadata": {"name": "tick"},
                "spec": {"schedule": "*/5 * * * *", "jobTemplate": template},
            }
            await p.client.create(CRONJOBS, cron, "default")
            past = {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}
            await p.client.patch(CRONJOBS, "tick", past, "default", subresource="status")

            async def started() -> list[Job] | None:
                jobs = (await p.client.list(JOBS, "default")).items
                status = (await p.client.get(CRONJOBS, "tick", "default"))["status"]
                return list(jobs) if jobs and len(status.get("active", [])) == 1 else None

            jobs = await p.until(started)
            assert len(jobs) == 1
            budget = {
                "metadata": {"name": "b"},
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            }
            await p.client.create(PODDISRUPTIONBUDGETS, budget, "default")
            await p.client.create(DEPLOYMENTS, deployment("web", 3), "default")

            async def counted() -> bool:
                status = (await p.client.get(PODDISRUPTIONBUDGETS, "b", "default")).get("status", {})
                return (status.get("disruptionsAllowed"), status.get("desiredHealthy")) == (1, 2)

            await p.until(counted)

    asyncio.run(run())


def test_the_api_goes_away_and_comes_back(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=2) as p:
            await p.client.create(DEPLOYMENTS, deployment("web", 2), "default")
            await pods_where(p, lambda pod: pod.ready, 2)
            await p.restart(0.3)
            await p.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 5}}, "default")
            await pods_where(p, lambda pod: pod.ready, 5)
            reasons = {e["reason"] for e in (await p.client.list(EVENTS, "default")).items}
            assert "Scheduled" in reasons

    asyncio.run(run())


def test_a_lease_in_the_real_api(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=0) as p:
            led: list[str] = []

            def contender(name: str) -> asyncio.Future[None]:
                client = Client(p.client.config, p.client.clock)
                election = Election("kube-system", "e", name, duration_s=3.0, renew_deadline_s=2.0, retry_s=0.3)

                async def body() -> None:
                    led.append(name)
                    await asyncio.sleep(3600)

                return asyncio.ensure_future(LeaderElection(client, election).run(body))

            async def leads(name: str) -> bool:
                return led[-1:] == [name]

            first = contender("a")
            await p.until(lambda: leads("a"))
            second = contender("b")
            await asyncio.sleep(3.9)
            assert led == ["a"]
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await p.until(lambda: leads("b"), 9)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)

    asyncio.run(run())
