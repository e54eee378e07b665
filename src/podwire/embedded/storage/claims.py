"""The claims that a pod uses, and the claims of its generic ephemeral volumes. Pure.

Source: Kubernetes' "Ephemeral Volumes"; ``k8s.io/kubernetes/pkg/controller/volume/ephemeral``.
"""

import copy
from collections.abc import Mapping
from typing import Any

from podwire.model.pod import Pod

Json = dict[str, Any]


def claim_of(volume: Mapping[str, Any], pod_name: str) -> str:
    """The name of the claim behind a pod's volume; empty for other kinds of volumes."""
    if source := volume.get("persistentVolumeClaim"):
        return str(source.get("claimName") or "")
    return f"{pod_name}-{volume.get('name', '')}" if volume.get("ephemeral") is not None else ""


def claims_of(pod: Pod) -> tuple[str, ...]:
    """The names of a pod's claims, in the order of its volumes."""
    names = (claim_of(volume, pod.metadata.name) for volume in pod.spec.volumes)
    return tuple(name for name in names if name)


def ephemeral_claims(pod: Pod) -> list[Json]:
    """The claims that a pod's ephemeral volumes need; the pod owns them, so they go with it."""
    meta = pod.metadata
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    claims: list[Json] = []
    for volume in pod.spec.volumes:
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if not template:
            continue
        template_metadata = template.get("metadata") or {}
        metadata = {
            "name": claim_of(volume, meta.name), "namespace": meta.namespace, "ownerReferences": [owner],
            "labels": dict(template_metadata.get("labels") or {}),
            "annotations": dict(template_metadata.get("annotations") or {}),
        }  # fmt: skip
        spec = copy.deepcopy(template.get("spec") or {})
        claims.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    return claims
