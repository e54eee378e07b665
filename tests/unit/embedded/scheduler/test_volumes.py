"""What the claims of a pod ask of its node."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.scheduler.usage import SchedulerState, pod_demand
from podwire.embedded.scheduler.volumes import (
    AFFINITY_CONFLICT,
    CLAIM_IN_USE,
    NO_VOLUME,
    UNBOUND,
    StorageObjects,
    volume_demand,
    volume_refusal,
)
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

TERMS = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
ON_SSD = {"required": {"nodeSelectorTerms": TERMS}}
MODES = ["ReadWriteOnce"]
LATE = "WaitForFirstConsumer"
FAST = msgspec.convert({"metadata": {"name": "fast", "labels": {"disk": "ssd"}}}, Node)
SLOW = msgspec.convert({"metadata": {"name": "slow", "labels": {"disk": "hdd"}}}, Node)


def storage(phase: str, class_name: str = "standard", **volume: Any) -> StorageObjects:
    claim = {
        "metadata": {"name": "data", "namespace": "n", "uid": "u"},
        "spec": {
            "accessModes": MODES, "storageClassName": class_name, "volumeName": "v" if phase != "Pending" else "",
        },
        "status": {"phase": phase},
    }  # fmt: skip
    spec = {"accessModes": MODES, "storageClassName": class_name, "nodeAffinity": ON_SSD} | volume
    saved = {"metadata": {"name": "v"}, "spec": spec}
    return StorageObjects(
        {"n/data": msgspec.convert(claim, PersistentVolumeClaim)},
        {"v": msgspec.convert(saved, PersistentVolume)},
        {
            "late": StorageClass(provisioner="podwire.io/folder", volume_binding_mode=LATE),
            "local": StorageClass(provisioner="kubernetes.io/no-provisioner", volume_binding_mode=LATE),
        },
    )


def pod(volume: dict[str, Any]) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "n"}, "spec": {"volumes": [volume]}}, Pod)


USES = {"name": "x", "persistentVolumeClaim": {"claimName": "data"}}


@pytest.mark.parametrize(
    ("volume", "objects", "problem"),
    [
        ({"name": "x", "emptyDir": {}}, storage("Pending"), ""),
        (USES, storage("Bound"), ""),
        (USES, storage("Pending"), UNBOUND),
        (USES, storage("Pending", "late"), ""),
        (USES, storage("Lost"), 'persistentvolumeclaim "data" bound to non-existent persistentvolume "v"'),
        (USES | {"persistentVolumeClaim": {"claimName": "no"}}, storage("Bound"),
         'persistentvolumeclaim "no" not found'),
        ({"name": "x", "ephemeral": {}}, storage("Bound"),
         'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-x"'),
    ],
)  # fmt: skip
def test_a_pod_waits_for_its_claims(volume: dict[str, Any], objects: StorageObjects, problem: str) -> None:
    assert volume_demand(pod(volume), objects).problem == problem


@pytest.mark.parametrize(
    ("objects", "refusals"),
    [
        (storage("Bound"), ("", AFFINITY_CONFLICT)),
        (storage("Bound", nodeAffinity=None), ("", "")),
        (storage("Pending", "late"), ("", "")),
        (storage("Pending", "local"), ("", NO_VOLUME)),
    ],
)
def test_nodes_must_reach_the_volumes(objects: StorageObjects, refusals: tuple[str, str]) -> None:
    demand = volume_demand(pod(USES), objects)
    assert tuple(volume_refusal(demand, objects.volumes.values(), node) for node in (FAST, SLOW)) == refusals


@pytest.mark.parametrize(("mode", "users", "refused"), [
    ("ReadWriteOncePod", 1, CLAIM_IN_USE), ("ReadWriteOncePod", 0, ""), ("ReadWriteOnce", 1, ""),
])  # fmt: skip
def test_a_claim_for_one_pod_is_used_once(mode: str, users: int, refused: str) -> None:
    objects = storage("Bound", nodeAffinity=None)
    claim = objects.claims["n/data"]
    alone = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, access_modes=(mode,)))
    used = StorageObjects({"n/data": alone}, objects.volumes, objects.classes, {"n/data": users})
    assert volume_refusal(volume_demand(pod(USES), used), (), FAST) == refused


def test_users_of_a_claim_are_counted_while_they_are_placed() -> None:
    state = SchedulerState()
    state.put_node(FAST)
    state.put_pod(pod_demand(pod(USES)), "fast")
    assert state.claim_users["n/data"] == 1
    state.put_pod(pod_demand(pod(USES)), "unknown")
    assert state.claim_users["n/data"] == 1
    state.drop_pod("")
    assert state.claim_users["n/data"] == 0
