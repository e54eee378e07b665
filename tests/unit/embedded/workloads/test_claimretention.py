"""The owners of a StatefulSet's claims under each retention policy."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.workloads.claimretention import claim_owners
from podwire.model.meta import ObjectMeta, OwnerReference
from podwire.model.workload import StatefulSet

POD = ObjectMeta(name="db-1", uid="pod-uid")
SET = OwnerReference(api_version="apps/v1", kind="StatefulSet", name="db", uid="set-uid", controller=True)
OTHER = OwnerReference(api_version="v1", kind="ConfigMap", name="c", uid="other-uid")
FOREIGN = OwnerReference(api_version="x/v1", kind="Database", name="d", uid="foreign-uid", controller=True)


def stateful_set(deleted: str, scaled: str, replicas: int) -> StatefulSet:
    policy = {"whenDeleted": deleted, "whenScaled": scaled}
    body: dict[str, Any] = {"replicas": replicas, "persistentVolumeClaimRetentionPolicy": policy}
    return msgspec.convert({"metadata": {"name": "db", "uid": "set-uid"}, "spec": body}, StatefulSet)


CASES: dict[str, tuple[StatefulSet, tuple[OwnerReference, ...], list[str] | None]] = {
    "nobody by default": (stateful_set("Retain", "Retain", 2), (), None),
    "the set": (stateful_set("Delete", "Retain", 2), (), ["set-uid"]),
    "the set already": (stateful_set("Delete", "Retain", 2), (SET,), None),
    "no longer the set": (stateful_set("Retain", "Retain", 2), (SET,), []),
    "the set, beyond replicas too": (stateful_set("Delete", "Retain", 1), (), ["set-uid"]),
    "the pod beyond replicas": (stateful_set("Delete", "Delete", 1), (SET,), ["pod-uid"]),
    "the set within replicas": (stateful_set("Delete", "Delete", 2), (), ["set-uid"]),
    "nobody within replicas": (stateful_set("Retain", "Delete", 2), (), None),
    "other owners stay": (stateful_set("Delete", "Retain", 2), (OTHER,), ["other-uid", "set-uid"]),
    "another controller's claim": (stateful_set("Delete", "Retain", 2), (FOREIGN,), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_policy_decides_the_owner(name: str) -> None:
    item, present, expected = CASES[name]
    result = claim_owners(item, 1, POD, present)
    assert (result if result is None else [owner["uid"] for owner in result]) == expected
