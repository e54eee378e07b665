"""What admission does with claims and volumes: the default class, protection while in use, and resizing.

The rules are those of the plugins DefaultStorageClass, StorageObjectInUseProtection and PersistentVolumeClaimResize of
Kubernetes.
"""

from typing import Any

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.store import Store
from podwire.errors import ConfigError
from podwire.model.quantity import parse_milli
from podwire.model.storage import StorageClass, default_class

Object = dict[str, Any]

CLAIMS, VOLUMES, CLASSES = "/persistentvolumeclaims", "/persistentvolumes", "storage.k8s.io/storageclasses"
_FINALIZERS = {CLAIMS: "kubernetes.io/pvc-protection", VOLUMES: "kubernetes.io/pv-protection"}
_CLASS_BETA = "volume.beta.kubernetes.io/storage-class"


def complete(store: Store, call: Call, obj: Object) -> None:
    """Adds the finalizer to a new claim or volume, and the default class to a claim that names none, in place."""
    meta = obj["metadata"]
    finalizer = _FINALIZERS[call.kind.table]
    if finalizer not in (meta.get("finalizers") or ()):
        meta["finalizers"] = [*(meta.get("finalizers") or ()), finalizer]
    if call.kind.table != CLAIMS:
        return
    spec = obj.setdefault("spec", {})
    if spec.get("storageClassName") is None and _CLASS_BETA not in (meta.get("annotations") or {}):
        classes = [msgspec.convert(entry.object(), StorageClass) for entry in store.entries(CLASSES)]
        chosen = default_class(classes)
        if chosen is not None:
            spec["storageClassName"] = chosen.metadata.name


def check_resize(store: Store, call: Call, new: Object, old: Object) -> None:
    """Lets a bound claim grow only when its class allows that.

    Raises: Forbidden otherwise.
    """
    if call.subresource or _requested(new) <= _requested(old):
        return
    name = (new.get("spec") or {}).get("storageClassName") or ""
    entry = store.get(CLASSES, "", name)
    if (old.get("status") or {}).get("phase") != "Bound":
        return  # Validation refuses the change.
    if entry is None or not entry.object().get("allowVolumeExpansion"):
        problem = (
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must "
            "support resize"
        )
        raise failures.forbidden(call.kind, new["metadata"].get("name") or "", problem)


def _requested(claim: Object) -> int:
    requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
    try:
        return parse_milli(requests.get("storage") or 0)
    except ConfigError:
        return 0
