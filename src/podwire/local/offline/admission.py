"""Admits manifests as the API server does: checks fields, fills in defaults, assigns addresses to Services.

Errors name the file and line of the field.
"""

import re
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, TypeVar

import msgspec

from podwire.embedded.apiserver import crd
from podwire.embedded.apiserver.allocate import ServiceAllocator
from podwire.embedded.apiserver.defaults import objects as defaults
from podwire.embedded.apiserver.kinds import BY_KIND, ResourceKind
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.validate import fields, objects
from podwire.errors import ApiError, ConfigError, ConfigErrors, Invalid
from podwire.local.manifesterrors import field_error, refused
from podwire.local.manifests import Manifest, parse_manifests

Json = dict[str, Any]
A = TypeVar("A")
B = TypeVar("B")

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
"""The kinds that are read; other kinds are ignored, but a kind that a Kubernetes group does not have is an error."""

_OWN_GROUPS = ("", "apps", "batch", "networking.k8s.io", "discovery.k8s.io")

_CUSTOM = ResourceKind(
    group="policy.networking.k8s.io",
    version="v1alpha2",
    kind="ClusterNetworkPolicy",
    plural="clusternetworkpolicies",
    namespaced=False,
    custom=True,
)

_NEWER_FIELD = re.compile(r"\.(from|to|protocols)\[\d+\]\.\w+$")
"""The path of the field that gives the kind of a peer or of a protocol."""


class AdmittedObject(msgspec.Struct, frozen=True):
    """An object as the API server would store it, and its manifest."""

    manifest: Manifest
    body: Json
    unknown_kinds: tuple[str, ...] = ()
    """Fields of a cluster policy with kinds of peers or protocols that podwire does not know."""

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of an object without a namespace."""
        meta = self.body["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def admitted(manifests: Iterable[Manifest], service_ranges: tuple[str, ...]) -> list[AdmittedObject]:
    """The objects of the kinds in :data:`KINDS`, admitted.

    Raises: ConfigErrors with file, line and field of every mistake.
    """
    allocator = ServiceAllocator(service_ranges)
    manifests = tuple(manifests)
    of_known_kind = [m for m in manifests if is_read(m)]
    schema = _custom_schema() if any(_kind(m).custom for m in of_known_kind) else {}
    failures: list[ConfigError] = []

    def collect(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """The results of ``work`` for the items without a mistake; mistakes go to ``failures``."""
        results = []
        for item in items:
            try:
                results.append(work(item))
            except ConfigErrors as failure:
                failures.extend(failure.failures)
            except ConfigError as failure:
                failures.append(failure)
        return results

    def read(manifest: Manifest) -> AdmittedObject:
        return _read_custom(manifest, schema) if _kind(manifest).custom else AdmittedObject(manifest, _read(manifest))

    def completed(decoded: AdmittedObject) -> AdmittedObject:
        return msgspec.structs.replace(decoded, body=_completed(decoded.manifest, decoded.body, allocator))

    collect(_check_kind, manifests)
    # Services with a fixed address come first, so that no other Service gets that address.
    objects_read = collect(completed, sorted(collect(read, of_known_kind), key=_needs_address))
    if failures:
        raise ConfigErrors(sorted(failures, key=_position))
    return objects_read


def _position(failure: ConfigError) -> tuple[str, int]:
    """The file and line of a mistake."""
    file, _, line = failure.source.rpartition(":")
    return (file, int(line)) if line.isdigit() else (failure.source, 0)


def is_read(manifest: Manifest) -> bool:
    """Whether the kind of an object is in :data:`KINDS`."""
    return (manifest.body["apiVersion"], manifest.kind) in KINDS


def _needs_address(read: AdmittedObject) -> bool:
    """Whether an object is a Service without a fixed address."""
    spec: Json = read.body.get("spec") or {}
    return read.manifest.kind == "Service" and not (spec.get("clusterIP") or spec.get("clusterIPs"))


def _check_kind(manifest: Manifest) -> None:
    """Refuses unknown kinds of Kubernetes' own groups: if a misspelled kind were ignored, the answer would be wrong."""
    group, _, version = str(manifest.body["apiVersion"]).rpartition("/")
    if group in _OWN_GROUPS and data.for_kind(group, version, manifest.kind) is None:
        raise ConfigError(
            manifest.source, "kind", f"the API server knows no {manifest.kind} in {manifest.body['apiVersion']}"
        )


def _kind(manifest: Manifest) -> ResourceKind:
    group, _, version = str(manifest.body["apiVersion"]).rpartition("/")
    return BY_KIND.get((group, version, manifest.kind), _CUSTOM)


def _read(manifest: Manifest) -> Json:
    """The object, decoded by the schema of its kind; unknown fields are an error."""
    kind = _kind(manifest)
    schema = data.for_kind(kind.group, kind.version, kind.kind)
    assert schema is not None, "kinds that matter here have a schema"
    try:
        decoded = fields.decode(manifest.body, schema, kind)
    except ApiError as failure:
        raise refused(manifest, failure) from failure
    if decoded.unknown:
        raise ConfigErrors([field_error(manifest, field, "there is no such field") for field in decoded.unknown])
    obj: Json = decoded.obj
    if kind.namespaced:
        obj["metadata"].setdefault("namespace", "default")
    return obj


def _read_custom(manifest: Manifest, schema: Json) -> AdmittedObject:
    """The same for ClusterNetworkPolicy, whose schema local clusters define; other clusters may have newer peers."""
    try:
        decoded = crd.decode(manifest.body, schema, _CUSTOM)
    except ApiError as failure:
        raise refused(manifest, failure) from failure
    if unknown := [field for field in decoded.unknown if not _NEWER_FIELD.search(field)]:
        raise ConfigErrors([field_error(manifest, field, "there is no such field") for field in unknown])
    whole = {**decoded.obj, "spec": manifest.body.get("spec")} if decoded.unknown else decoded.obj
    obj: Json = crd.fill(whole, schema)
    if causes := list(crd.check(obj, schema)):
        raise ConfigErrors([field_error(manifest, cause.field, cause.message) for cause in causes])
    return AdmittedObject(manifest, obj, tuple(decoded.unknown))


def _custom_schema() -> Json:
    text = resources.files("podwire.local.addons").joinpath("clusternetworkpolicy.yaml").read_text(encoding="utf-8")
    (definition,) = parse_manifests(text, "")
    versions = definition.body["spec"]["versions"]
    schema: Json = next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == _CUSTOM.version)
    return schema


def _completed(manifest: Manifest, obj: Json, allocator: ServiceAllocator) -> Json:
    """The object with the fields that the API server adds."""
    kind = _kind(manifest)
    obj = defaults.apply(kind, obj)
    try:
        if manifest.kind == "Service":
            obj = allocator.assign(obj)
            allocator.observe(None, obj)
    except Invalid as failure:
        causes: list[Json] = failure.details.get("causes") or [{}]
        first = causes[0]
        raise field_error(
            manifest, str(first.get("field", "")), str(first.get("message") or failure.message)
        ) from failure
    if invalid := list(objects.check(kind, obj, None)):
        raise ConfigErrors([field_error(manifest, cause.field, cause.message) for cause in invalid])
    return obj
