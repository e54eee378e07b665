"""Manifests as the API server would store them: fields checked, defaults filled in, addresses given to Services.

What is wrong is told with the line of the field.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from podwire.apiserver.allocate import ServiceAllocator
from podwire.apiserver.defaults import objects as defaults
from podwire.apiserver.kinds import BY_KIND, Kind
from podwire.apiserver.schema import data
from podwire.apiserver.validate import fields, objects
from podwire.errors import ApiError, ConfigError, Invalid
from podwire.local.manifests import Manifest
from podwire.model.policy import ClusterNetworkPolicy

Json = dict[str, Any]

KINDS = {
    ("v1", "Namespace"),
    ("v1", "Service"),
    ("v1", "Pod"),
    ("v1", "Node"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"),
}
"""What matters here; everything else in the files is passed over."""


_CUSTOM = Kind(
    group="policy.networking.k8s.io",
    version="v1alpha2",
    kind="ClusterNetworkPolicy",
    plural="clusternetworkpolicies",
    namespaced=False,
    custom=True,
)


class Stored(msgspec.Struct, frozen=True):
    """An object as the API server would have it, and where it was read."""

    manifest: Manifest
    body: Json

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of what is in no namespace."""
        meta = self.body["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def stored(manifests: Iterable[Manifest], service_ranges: tuple[str, ...]) -> list[Stored]:
    """The objects among them that matter here.

    Raises: ConfigError naming file, line and field of what is wrong.
    """
    allocator = ServiceAllocator(service_ranges)
    read = [(m, _read(m)) for m in manifests if (m.body["apiVersion"], m.kind) in KINDS]
    # Addresses that are asked for are taken first.
    return [Stored(m, _completed(m, body, allocator)) for m, body in sorted(read, key=_asks_for_nothing)]


def _asks_for_nothing(read: tuple[Manifest, Json]) -> bool:
    """Whether it is a Service that leaves its address to be chosen."""
    manifest, body = read
    spec: Json = body.get("spec") or {}
    return manifest.kind == "Service" and not (spec.get("clusterIP") or spec.get("clusterIPs"))


def _kind(manifest: Manifest) -> Kind:
    group, _, version = str(manifest.body["apiVersion"]).rpartition("/")
    return BY_KIND.get((group, version, manifest.kind), _CUSTOM)


def _read(manifest: Manifest) -> Json:
    """The object with nothing but fields of its kind."""
    kind = _kind(manifest)
    if kind.custom:
        return _read_custom(manifest)
    schema = data.for_kind(kind.group, kind.version, kind.kind)
    assert schema is not None, "kinds that matter here have a schema"
    try:
        found = fields.decode(manifest.body, schema, kind)
    except ApiError as failure:
        raise ConfigError(manifest.source, "", f"{manifest.name}: {failure.message}") from failure
    if found.unknown:
        raise wrong(manifest, found.unknown[0], "there is no such field")
    obj: Json = found.obj
    if kind.namespaced:
        obj["metadata"].setdefault("namespace", "default")
    return obj


def _read_custom(manifest: Manifest) -> Json:
    try:
        msgspec.convert(manifest.body, ClusterNetworkPolicy)
    except msgspec.ValidationError as failure:
        problem, _, place = str(failure).partition(" - at `$.")
        raise wrong(manifest, place.rstrip("`"), problem) from failure
    return manifest.body


def _completed(manifest: Manifest, obj: Json, allocator: ServiceAllocator) -> Json:
    """The object with all that the API server adds."""
    kind = _kind(manifest)
    obj = defaults.apply(kind, obj)
    try:
        if manifest.kind == "Service":
            obj = allocator.assign(obj)
            allocator.observe(None, obj)
    except Invalid as failure:
        causes: list[Json] = failure.details.get("causes") or [{}]
        first = causes[0]
        raise wrong(manifest, str(first.get("field", "")), str(first.get("message") or failure.message)) from failure
    for cause in objects.check(kind, obj, None):
        raise wrong(manifest, cause.field, cause.message)
    return obj


def wrong(manifest: Manifest, field: str, problem: str) -> ConfigError:
    """What is said of a field."""
    return ConfigError(manifest.at(field), field, f"{manifest.name}: {problem}")
