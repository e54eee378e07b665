"""Checks of StorageClasses, PersistentVolumes and PersistentVolumeClaims.

Source: ``ValidatePersistentVolume*`` in ``pkg/apis/core/validation`` of Kubernetes, ``pkg/apis/storage/validation``.
"""

from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.pods import one_of
from podwire.errors import ConfigError
from podwire.model.quantity import parse_milli
from podwire.model.storage import VOLUME_SETTINGS

Json = dict[str, Any]

_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_VOLUME_MODES = ("Block", "Filesystem")
_POLICIES = ("Delete", "Recycle", "Retain")
_BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
_IMMUTABLE = "field is immutable"
_PARAMETERS, _PARAMETERS_SIZE = 512, 256 << 10
"""Parameters of a VolumeAttributesClass, and their bytes."""
_CLAIM_FROZEN = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def _amount(value: Any) -> int:
    """The quantity in thousandths; 0 for none."""
    try:
        return parse_milli(value or 0)
    except ConfigError:
        return 0


def _modes(spec: Json) -> Iterator[Cause]:
    modes = spec.get("accessModes") or ()
    if not modes:
        yield causes.required("spec.accessModes", "at least 1 access mode is required")
    for mode in modes:
        if mode not in _MODES:
            yield causes.unsupported("spec.accessModes", mode, _MODES)
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        detail = "may not use ReadWriteOncePod with other access modes"
        yield causes.forbidden("spec.accessModes", detail)
    yield from one_of(spec.get("volumeMode"), _VOLUME_MODES, "spec.volumeMode")


def _class_name(spec: Json) -> Iterator[Cause]:
    name = spec.get("storageClassName") or ""
    if name and (problem := names.subdomain(name)):
        yield causes.invalid("spec.storageClassName", name, problem)


def check_claim(new: Json, old: Json | None) -> Iterator[Cause]:
    """A PersistentVolumeClaim."""
    spec: Json = new.get("spec") or {}
    yield from _modes(spec)
    requested = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if not requested:
        yield causes.required("spec.resources[storage]")
    elif _amount(requested) <= 0:
        yield causes.invalid("spec.resources[storage]", requested, "must be greater than zero")
    yield from _class_name(spec)
    if old is not None:
        yield from _changed_claim(spec, old)


def _changed_claim(spec: Json, old: Json) -> Iterator[Cause]:
    """Refuses changes of a stored claim, except of its volume, its class and, when it is bound, its size."""
    before: Json = old.get("spec") or {}
    frozen = dict(spec)
    if not before.get("volumeName"):
        frozen["volumeName"] = before.get("volumeName")
    if before.get("storageClassName") is None:
        frozen["storageClassName"] = None
    bound = (old.get("status") or {}).get("phase") == "Bound"
    if bound:
        frozen["resources"] = before.get("resources")
        frozen["volumeAttributesClassName"] = before.get("volumeAttributesClassName")
    if _set(frozen) != _set(before):
        yield causes.forbidden("spec", _CLAIM_FROZEN)
    elif bound:
        size, before_size = _requested(spec), _requested(before)
        capacity = _amount(((old.get("status") or {}).get("capacity") or {}).get("storage"))
        if size < before_size and size <= capacity:
            yield causes.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


def _requested(spec: Json) -> int:
    return _amount(((spec.get("resources") or {}).get("requests") or {}).get("storage"))


def _set(spec: Json) -> Json:
    return {key: value for key, value in spec.items() if value is not None}


def check_volume(new: Json, old: Json | None) -> Iterator[Cause]:
    """A PersistentVolume."""
    spec: Json = new.get("spec") or {}
    yield from _modes(spec)
    size = (spec.get("capacity") or {}).get("storage")
    if not spec.get("capacity"):
        yield causes.required("spec.capacity")
    elif set(spec["capacity"]) != {"storage"}:
        yield causes.unsupported("spec.capacity", spec["capacity"], ("storage",))
    elif _amount(size) <= 0:
        yield causes.invalid("spec.capacity[storage]", size, "must be greater than zero")
    yield from one_of(spec.get("persistentVolumeReclaimPolicy"), _POLICIES, "spec.persistentVolumeReclaimPolicy")
    yield from _class_name(spec)
    yield from _source(spec)
    if old is not None:
        yield from _changed_volume(spec, old.get("spec") or {})


def _source(spec: Json) -> Iterator[Cause]:
    sources = sorted(key for key, value in spec.items() if key not in VOLUME_SETTINGS and value is not None)
    if not sources:
        yield causes.required("spec", "must specify a volume type")
    for extra in sources[1:]:
        yield causes.forbidden(f"spec.{extra}", "may not specify more than 1 volume type")
    for kind in ("hostPath", "local"):
        source = spec.get(kind)
        if source is None:
            continue
        path = source.get("path") or ""
        if not path:
            yield causes.required(f"spec.{kind}.path")
        elif ".." in path.split("/"):
            yield causes.invalid(f"spec.{kind}.path", path, "must not contain '..'")
    if spec.get("local") is not None and not (spec.get("nodeAffinity") or {}).get("required"):
        yield causes.required("spec.nodeAffinity", "Local volume requires node affinity")


def _changed_volume(spec: Json, before: Json) -> Iterator[Cause]:
    def source(of: Json) -> Json:
        return {key: value for key, value in of.items() if key not in VOLUME_SETTINGS and value is not None}

    if source(spec) != source(before):
        detail = "spec.persistentvolumesource is immutable after creation"
        yield causes.forbidden("spec.persistentvolumesource", detail)
    if spec.get("volumeMode") != before.get("volumeMode"):
        yield causes.invalid("spec.volumeMode", spec.get("volumeMode"), _IMMUTABLE)
    if before.get("nodeAffinity") and spec.get("nodeAffinity") != before["nodeAffinity"]:
        yield causes.invalid("spec.nodeAffinity", spec.get("nodeAffinity"), _IMMUTABLE)


def check_attributes_class(new: Json, old: Json | None) -> Iterator[Cause]:
    """A VolumeAttributesClass."""
    driver, parameters = new.get("driverName") or "", new.get("parameters") or {}
    if not driver:
        yield causes.required("driverName")
    elif problem := names.qualified(driver.lower()):
        yield causes.invalid("driverName", driver, problem)
    if not parameters:
        yield causes.required("parameters", "must contain at least one key/value pair")
    elif len(parameters) > _PARAMETERS:
        yield causes.too_many("parameters", len(parameters), _PARAMETERS)
    if "" in parameters:
        yield causes.invalid("parameters", "", "field can not be empty.")
    if sum(len(key) + len(value) for key, value in parameters.items()) > _PARAMETERS_SIZE:
        yield causes.too_long("parameters", _PARAMETERS_SIZE)
    for field in ("driverName", "parameters") if old is not None else ():
        if (new.get(field) or None) != ((old or {}).get(field) or None):
            yield causes.forbidden(field, f"updates to {field} are forbidden.")


def check_class(new: Json, old: Json | None) -> Iterator[Cause]:
    """A StorageClass."""
    if not new.get("provisioner"):
        yield causes.required("provisioner")
    yield from one_of(new.get("reclaimPolicy"), ("Delete", "Retain"), "reclaimPolicy")
    yield from one_of(new.get("volumeBindingMode"), _BINDING_MODES, "volumeBindingMode")
    if old is None:
        return
    for field in ("parameters", "provisioner"):
        if (new.get(field) or None) != (old.get(field) or None):
            yield causes.forbidden(field, f"updates to {field} are forbidden.")
    for field in ("reclaimPolicy", "volumeBindingMode"):
        if new.get(field) != old.get(field):
            yield causes.invalid(field, new.get(field), _IMMUTABLE)
