"""Claims of StatefulSets and of single pods, with the API server, the controllers and the scheduler."""

import asyncio
from pathlib import Path
from typing import Any

from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.kube.resources import EVENTS, PERSISTENTVOLUMECLAIMS, PODS, STATEFULSETS, STORAGECLASSES
from podwire.local.controllers import LocalControllerConfig

JsonObject = dict[str, Any]
FOLDERS = {"metadata": {"name": "folders"}, "provisioner": "podwire.io/folder", "volumeBindingMode": "Immediate"}


def claim(name: str, mode: str = "ReadWriteOnce") -> JsonObject:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": [mode], "storageClassName": "folders", "resources": resources}
    return {"metadata": {"name": name}, "spec": spec}


async def owners(p: ControlPlane) -> dict[str, list[str]]:
    """The kinds of the owners of each claim."""
    items = (await p.client.list(PERSISTENTVOLUMECLAIMS.raw, "default")).items
    return {
        item["metadata"]["name"]: [owner["kind"] for owner in item["metadata"].get("ownerReferences", ())]
        for item in items
        if "deletionTimestamp" not in item["metadata"]
    }


def test_claims_go_with_scaled_down_pods_and_the_set(plane: StartControlPlane, tmp_path: Path) -> None:
    labels = {"app": "db"}
    body = {
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            "volumeClaimTemplates": [claim("data")],
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
        },
    }  # fmt: skip

    async def run() -> None:
        async with plane(nodes=1, config=LocalControllerConfig(volume_folder=str(tmp_path))) as p:
            await p.client.create(STORAGECLASSES, FOLDERS)
            await p.client.create(STATEFULSETS, body, "default")

            async def owned(expected: dict[str, list[str]]) -> bool:
                return await owners(p) == expected

            await p.until(lambda: owned({"data-db-0": ["StatefulSet"], "data-db-1": ["StatefulSet"]}))
            await p.client.patch(STATEFULSETS, "db", {"spec": {"replicas": 1}}, "default")
            await p.until(lambda: owned({"data-db-0": ["StatefulSet"]}))
            await p.client.delete(STATEFULSETS, "db", "default", propagation="Background")
            await p.until(lambda: owned({}))

    asyncio.run(run())


def test_a_second_pod_waits_for_a_claim_of_one_pod(plane: StartControlPlane, tmp_path: Path) -> None:
    def user(name: str) -> JsonObject:
        volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "alone"}}]
        return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}}

    async def run() -> None:
        async with plane(nodes=2, config=LocalControllerConfig(volume_folder=str(tmp_path))) as p:
            await p.client.create(STORAGECLASSES, FOLDERS)
            await p.client.create(PERSISTENTVOLUMECLAIMS, claim("alone", "ReadWriteOncePod"), "default")
            await p.client.create(PODS, user("first"), "default")

            async def placed(name: str) -> bool:
                return bool((await p.client.get(PODS, name, "default"))["spec"].get("nodeName"))

            async def refused() -> bool:
                events = (await p.client.list(EVENTS, "default")).items
                return any("ReadWriteOncePod access mode" in event["message"] for event in events)

            await p.until(lambda: placed("first"))
            await p.client.create(PODS, user("second"), "default")
            await p.until(refused)
            assert not await placed("second")
            await p.client.delete(PODS, "first", "default", grace_period_s=0)
            await p.until(lambda: placed("second"))

    asyncio.run(run())
