"""The ``autoscaling/v1`` Scale of a workload or of a custom object with this subresource."""

from typing import Any

import msgspec

from podwire.embedded.apiserver import crd
from podwire.model.selector import LabelSelector

Object = dict[str, Any]


def read(obj: Object, paths: Object) -> Object:
    """The Scale of an object; ``paths`` is the ``scale`` subresource of a custom kind, empty for other kinds."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if paths:
        desired, actual, text = crd.read_scale(obj, paths)
    else:
        desired, actual, text = (
            spec.get("replicas") or 0,
            status.get("replicas") or 0,
            _selector(spec.get("selector") or {}),
        )
    metadata_fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale_status: Object = {"replicas": actual}
    if text:
        scale_status["selector"] = text
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in metadata_fields if key in meta},
        "spec": {"replicas": desired} if desired else {}, "status": scale_status,
    }  # fmt: skip


def write(obj: Object, paths: Object, replicas: int) -> Object:
    """The object with the wanted replicas set."""
    if paths:
        return crd.write_scale(obj, paths, replicas)
    return {**obj, "spec": {**obj["spec"], "replicas": replicas}}


def _selector(selector: Object) -> str:
    if "matchLabels" in selector or "matchExpressions" in selector:
        return str(msgspec.convert(selector, LabelSelector).requirements())
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
