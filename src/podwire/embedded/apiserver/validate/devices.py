"""Rules of ``resource.k8s.io`` that do not need a device driver: required fields, unions, and what may not change."""

from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names

Json = dict[str, Any]

_MODES = ("ExactCount", "All")
_LIMIT = 32
"""The largest number of requests of a claim."""
_NODE_CHOICES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def _selectors(holder: Json, path: str) -> Iterator[Cause]:
    for index, selector in enumerate(holder.get("selectors") or ()):
        if not (selector.get("cel") or {}).get("expression"):
            yield causes.required(f"{path}.selectors[{index}].cel.expression")


def _exact_request(request: Json, path: str) -> Iterator[Cause]:
    """A request for devices of one class."""
    if not request.get("deviceClassName"):
        yield causes.required(f"{path}.deviceClassName")
    elif problem := names.subdomain(request["deviceClassName"]):
        yield causes.invalid(f"{path}.deviceClassName", request["deviceClassName"], problem)
    mode, count = request.get("allocationMode"), request.get("count") or 0
    if mode not in _MODES:
        yield causes.unsupported(f"{path}.allocationMode", mode, _MODES)
    elif mode == "ExactCount" and count <= 0:
        yield causes.invalid(f"{path}.count", count, "must be greater than zero")
    elif mode == "All" and count:
        yield causes.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    yield from _selectors(request, path)


def _request(request: Json, path: str) -> Iterator[Cause]:
    if problem := names.label(request.get("name") or ""):
        yield causes.invalid(f"{path}.name", request.get("name") or "", problem)
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or ()
    if (exactly is None) == (not alternatives):
        detail = "exactly one of `exactly` or `firstAvailable` is required"
        yield causes.required(path, detail) if exactly is None else causes.invalid(path, None, detail)
    if exactly is not None:
        yield from _exact_request(exactly, f"{path}.exactly")
    for index, alternative in enumerate(alternatives):
        yield from _exact_request(alternative, f"{path}.firstAvailable[{index}]")


def _spec(spec: Json, path: str) -> Iterator[Cause]:
    """The spec of a claim."""
    requests = (spec.get("devices") or {}).get("requests") or []
    if len(requests) > _LIMIT:
        yield causes.too_many(f"{path}.devices.requests", len(requests), _LIMIT)
    known_names: set[str] = set()
    for index, request in enumerate(requests):
        request_path = f"{path}.devices.requests[{index}]"
        yield from _request(request, request_path)
        if (name := request.get("name", "")) in known_names:
            yield causes.duplicate(f"{request_path}.name", name)
        known_names.add(name)


def check_device_class(new: Json, _: Json | None) -> Iterator[Cause]:
    """A DeviceClass."""
    yield from _selectors(new.get("spec") or {}, "spec")


def check_claim(new: Json, old: Json | None) -> Iterator[Cause]:
    """A ResourceClaim."""
    spec: Json = new.get("spec") or {}
    yield from _spec(spec, "spec")
    if old is not None and (old.get("spec") or {}) != spec:
        yield causes.invalid("spec", spec, "field is immutable")


def check_claim_template(new: Json, old: Json | None) -> Iterator[Cause]:
    """A ResourceClaimTemplate."""
    spec: Json = new.get("spec") or {}
    yield from _spec(spec.get("spec") or {}, "spec.spec")
    if old is not None and (old.get("spec") or {}) != spec:
        yield causes.invalid("spec", spec, "field is immutable")


def check_slice(new: Json, old: Json | None) -> Iterator[Cause]:
    """A ResourceSlice."""
    spec: Json = new.get("spec") or {}
    before: Json = (old or {}).get("spec") or {}
    if not spec.get("driver"):
        yield causes.required("spec.driver")
    elif problem := names.subdomain(spec["driver"]):
        yield causes.invalid("spec.driver", spec["driver"], problem)
    yield from _check_pool_and_nodes(spec)
    for field in ("driver", "nodeName") if before else ():
        if before.get(field) != spec.get(field):
            yield causes.invalid(f"spec.{field}", spec.get(field), "field is immutable")
    yield from _devices(spec)


def _check_pool_and_nodes(spec: Json) -> Iterator[Cause]:
    """The pool of a slice, and the nodes that reach its devices."""
    pool: Json = spec.get("pool") or {}
    if not pool.get("name"):
        yield causes.required("spec.pool.name")
    if (count := pool.get("resourceSliceCount") or 0) <= 0:
        yield causes.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    chosen = [field for field in _NODE_CHOICES if spec.get(field)]
    if len(chosen) != 1:
        detail = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
        yield causes.invalid("spec", chosen, detail) if chosen else causes.required("spec", detail)


def _devices(spec: Json) -> Iterator[Cause]:
    """The names of the devices of a slice."""
    known_names: set[str] = set()
    for index, device in enumerate(spec.get("devices") or ()):
        name = device.get("name") or ""
        if problem := names.label(name):
            yield causes.invalid(f"spec.devices[{index}].name", name, problem)
        elif name in known_names:
            yield causes.duplicate(f"spec.devices[{index}].name", name)
        known_names.add(name)
