"""Manifests as the API server would store them: fields checked, defaults filled in, addresses given to Services.

What is wrong is told with the line of the field.
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
"""What matters here; everything else in the files is passed over, but not what Kubernetes' own groups do not have."""

_OWN_GROUPS = ("", "apps", "batch", "networking.k8s.io", "discovery.k8s.io")

_CUSTOM = ResourceKind(
    group="policy.networking.k8s.io",
    version="v1alpha2",
    kind="ClusterNetworkPolicy",
    plural="clusternetworkpolicies",
    namespaced=False,
    custom=True,
)

_NEWER = re.compile(r"\.(from|to|protocols)\[\d+\]\.\w+$")
"""Where the kind of a peer or of a protocol stands."""

_TYPE = re.compile(r"cannot unmarshal (.+) into Go struct field \w*\.(\S+) of type (\S+)")
_TYPES = {
    "string": "a text",
    "bool": "true or false",
    "number": "a number",
    "int32": "a number",
    "int64": "a number",
    "array": "a list",
    "object": "an object",
}
"""The types of Go and JSON by what people call them."""


class Stored(msgspec.Struct, frozen=True):
    """An object as the API server would have it, and where it was read."""

    manifest: Manifest
    body: Json
    newer: tuple[str, ...] = ()
    """Fields of a cluster policy that are newer than this program: kinds of peers or of protocols."""

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of what is in no namespace."""
        meta = self.body["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def stored(manifests: Iterable[Manifest], service_ranges: tuple[str, ...]) -> list[Stored]:
    """The objects among them that matter here.

    Raises: ConfigErrors naming file, line and field of all that is wrong.
    """
    allocator = ServiceAllocator(service_ranges)
    manifests = tuple(manifests)
    here = [m for m in manifests if matters(m)]
    schema = _custom_schema() if any(_kind(m).custom for m in here) else {}
    wrongs: list[ConfigError] = []

    def each(work: Callable[[A], B], some: Iterable[A]) -> list[B]:
        """What comes of those that are right."""
        found = []
        for one in some:
            try:
                found.append(work(one))
            except ConfigErrors as failure:
                wrongs.extend(failure.failures)
            except ConfigError as failure:
                wrongs.append(failure)
        return found

    def read(manifest: Manifest) -> Stored:
        return _read_custom(manifest, schema) if _kind(manifest).custom else Stored(manifest, _read(manifest))

    def completed(one: Stored) -> Stored:
        return msgspec.structs.replace(one, body=_completed(one.manifest, one.body, allocator))

    each(_check_kind, manifests)
    found = each(completed, sorted(each(read, here), key=_asks_for_nothing))  # what is asked for is taken first
    if wrongs:
        raise ConfigErrors(sorted(wrongs, key=_place))
    return found


def _place(failure: ConfigError) -> tuple[str, int]:
    """File and line."""
    file, _, line = failure.source.rpartition(":")
    return (file, int(line)) if line.isdigit() else (failure.source, 0)


def matters(manifest: Manifest) -> bool:
    """Whether an object is of a kind that is read here."""
    return (manifest.body["apiVersion"], manifest.kind) in KINDS


def _asks_for_nothing(read: Stored) -> bool:
    """Whether it is a Service that leaves its address to be chosen."""
    spec: Json = read.body.get("spec") or {}
    return read.manifest.kind == "Service" and not (spec.get("clusterIP") or spec.get("clusterIPs"))


def _check_kind(manifest: Manifest) -> None:
    """A kind that is misspelled would be passed over, and the answer be wrong."""
    group, _, version = str(manifest.body["apiVersion"]).rpartition("/")
    if group in _OWN_GROUPS and data.for_kind(group, version, manifest.kind) is None:
        raise ConfigError(
            manifest.source, "kind", f"the API server knows no {manifest.kind} in {manifest.body['apiVersion']}"
        )


def _kind(manifest: Manifest) -> ResourceKind:
    group, _, version = str(manifest.body["apiVersion"]).rpartition("/")
    return BY_KIND.get((group, version, manifest.kind), _CUSTOM)


def _read(manifest: Manifest) -> Json:
    """The object with nothing but fields of its kind."""
    kind = _kind(manifest)
    schema = data.for_kind(kind.group, kind.version, kind.kind)
    assert schema is not None, "kinds that matter here have a schema"
    try:
        found = fields.decode(manifest.body, schema, kind)
    except ApiError as failure:
        raise _mismatch(manifest, failure) from failure
    if found.unknown:
        raise ConfigErrors([wrong(manifest, field, "there is no such field") for field in found.unknown])
    obj: Json = found.obj
    if kind.namespaced:
        obj["metadata"].setdefault("namespace", "default")
    return obj


def _read_custom(manifest: Manifest, schema: Json) -> Stored:
    """The same for the kind that local clusters define; a cluster that is not local may define newer peers."""
    try:
        found = crd.decode(manifest.body, schema, _CUSTOM)
    except ApiError as failure:
        raise _mismatch(manifest, failure) from failure
    if strange := [field for field in found.unknown if not _NEWER.search(field)]:
        raise ConfigErrors([wrong(manifest, field, "there is no such field") for field in strange])
    whole = {**found.obj, "spec": manifest.body.get("spec")} if found.unknown else found.obj
    obj: Json = crd.fill(whole, schema)
    if causes := list(crd.check(obj, schema)):
        raise ConfigErrors([wrong(manifest, cause.field, cause.message) for cause in causes])
    return Stored(manifest, obj, tuple(found.unknown))


def _custom_schema() -> Json:
    text = resources.files("podwire.local.addons").joinpath("clusternetworkpolicy.yaml").read_text(encoding="utf-8")
    (definition,) = parse_manifests(text, "")
    versions = definition.body["spec"]["versions"]
    found: Json = next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == _CUSTOM.version)
    return found


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
    if found := list(objects.check(kind, obj, None)):
        raise ConfigErrors([wrong(manifest, cause.field, cause.message) for cause in found])
    return obj


def _mismatch(manifest: Manifest, failure: ApiError) -> ConfigError:
    """What is said of a value of another type than the field's, which the API server says in words of its own."""
    said = _TYPE.search(failure.message)
    if said is None:
        return ConfigError(manifest.source, "", f"{manifest.name}: {failure.message}")
    found, field, wanted = said.groups()
    return wrong(manifest, field, f"expected {_TYPES.get(wanted, wanted)}, found {_TYPES.get(found, found)}")


def wrong(manifest: Manifest, field: str, problem: str) -> ConfigError:
    """What is said of a field."""
    return ConfigError(manifest.at(field), field, f"{manifest.name}: {problem}")
