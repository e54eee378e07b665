"""Who owns the claims of a StatefulSet, by its ``persistentVolumeClaimRetentionPolicy``. Pure.

Claims are deleted by garbage collection: with ``whenDeleted: Delete`` the StatefulSet owns them, and with ``whenScaled:
Delete`` a pod beyond ``replicas`` owns its claims, so they are deleted after the pod. Source:
``k8s.io/kubernetes/pkg/controller/statefulset/stateful_set_utils.go`` (updateClaimOwnerRefForSetAndPod); KEP-1847.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from podwire.embedded.workloads.template import PodOwner
from podwire.model.meta import ObjectMeta, OwnerReference
from podwire.model.workload import StatefulSet

Json = dict[str, Any]


def claim_owners(
    item: StatefulSet, ordinal: int, pod: ObjectMeta | None, present: Sequence[OwnerReference] = ()
) -> list[Json] | None:
    """The owners that a claim should have; None when it has them, or belongs to another controller.

    ``pod`` is the pod of the ordinal, None when there is none.
    """
    policy, meta = item.spec.persistent_volume_claim_retention_policy, item.metadata
    start = item.spec.ordinals.start
    beyond = ordinal not in range(start, start + item.spec.replicas)
    with_pod = policy.get("whenScaled") == "Delete" and beyond
    if with_pod and pod is None:
        return None
    own = {meta.uid, pod.uid if pod is not None else meta.uid}
    other_references = [reference for reference in present if reference.uid not in own]
    if any(reference.controller for reference in other_references):
        return None
    desired = [msgspec.to_builtins(reference) for reference in other_references]
    if with_pod and pod is not None:
        desired.append(PodOwner("v1", "Pod", pod).reference)
    elif policy.get("whenDeleted") == "Delete":
        desired.append(PodOwner("apps/v1", "StatefulSet", meta).reference)
    same = {owner["uid"] for owner in desired} == {reference.uid for reference in present}
    return None if same else desired
