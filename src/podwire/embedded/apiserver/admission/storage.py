"""Admission of claims and volumes: the default class, protection while in use, and resizing.

The rules are those of the plugins DefaultStorageClass, StorageObjectInUseProtection and PersistentVolumeClaimResize of
Kubernetes.
"""

from typing import Any

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.errors import ConfigError
from podwire.model.quantity import parse_milli
from podwire.model.storage import CLAIM_FINALIZER, CLASS_BETA, VOLUME_FINALIZER, StorageClass, default_class

Object = dict[str, Any]

_CLAIMS, _VOLUMES, _CLASSES = "/persistentvolumeclaims", "/persistentvolumes", "storage.k8s.io/storageclasses"
_FINALIZERS = {_CLAIMS: CLAIM_FINALIZER, _VOLUMES: VOLUME_FINALIZER}


class DefaultStorageClass:
    """Gives a claim that names no class the default class."""

    tables = frozenset({_CLAIMS})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def mutate(self, request: AdmissionRequest) -> None:
        """Sets ``storageClassName`` of a new claim."""
        if not request.creates:
            return
        spec = request.obj.setdefault("spec", {})
        annotations = request.obj["metadata"].get("annotations") or {}
        if spec.get("storageClassName") is None and CLASS_BETA not in annotations:
            classes = [msgspec.convert(entry.object(), StorageClass) for entry in self._store.entries(_CLASSES)]
            chosen = default_class(classes)
            if chosen is not None:
                spec["storageClassName"] = chosen.metadata.name


class StorageObjectInUseProtection:
    """Keeps claims and volumes until nothing uses them, by a finalizer."""

    tables = frozenset(_FINALIZERS)

    def __init__(self, context: AdmissionContext) -> None:
        del context

    def mutate(self, request: AdmissionRequest) -> None:
        """Adds the finalizer to a new claim or volume."""
        if not request.creates:
            return
        finalizer = _FINALIZERS[request.table]
        meta = request.obj["metadata"]
        if finalizer not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), finalizer]


class ClaimResize:
    """Lets a bound claim grow only when its class allows that."""

    tables = frozenset({_CLAIMS})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Forbidden when the class of a claim that grows does not allow that."""
        new, old = request.obj, request.old
        if request.operation != "UPDATE" or request.call.subresource:
            return
        if _requested(new) <= _requested(old) or (old.get("status") or {}).get("phase") != "Bound":
            return  # Validation refuses the change of a claim that is not bound.
        entry = self._store.get(_CLASSES, "", (new.get("spec") or {}).get("storageClassName") or "")
        if entry is None or not entry.object().get("allowVolumeExpansion"):
            problem = (
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must "
                "support resize"
            )
            raise failures.forbidden(request.call.kind, request.name, problem)


def _requested(claim: Object) -> int:
    requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
    try:
        return parse_milli(requests.get("storage") or 0)
    except ConfigError:
        return 0
