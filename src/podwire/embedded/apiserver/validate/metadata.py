"""Checks that every object's metadata passes: names, labels, annotations, owners, finalizers, immutability."""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.names import Check

Json = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
_ANNOTATIONS_LIMIT = 256 * 1024
NAME_FORMS: Mapping[tuple[str, str], Check] = {
    ("", "Namespace"): names.label,
    ("", "Service"): names.label,
    (_RBAC, "Role"): names.path_segment,
    (_RBAC, "RoleBinding"): names.path_segment,
    (_RBAC, "ClusterRole"): names.path_segment,
    (_RBAC, "ClusterRoleBinding"): names.path_segment,
    ("networking.k8s.io", "IPAddress"): names.canonical_ip,
    ("apiregistration.k8s.io", "APIService"): names.path_segment,
}
"""Kinds whose names are no DNS subdomains."""


def check_name(kind: ResourceKind, obj: Json) -> Iterator[Cause]:
    """The name, as the kind wants it."""
    meta = obj.get("metadata") or {}
    name, prefix = meta.get("name"), meta.get("generateName")
    form = NAME_FORMS.get((kind.group, kind.kind), names.subdomain)
    if prefix and (problem := form(prefix.rstrip("-") or prefix)):
        yield causes.invalid("metadata.generateName", prefix, problem)
    if not name:
        yield causes.required("metadata.name", "name or generateName is required")
    elif problem := form(name):
        yield causes.invalid("metadata.name", name, problem)


def check_labels(labels: Any, path: str) -> Iterator[Cause]:
    """Keys and values of labels."""
    for key, value in (labels or {}).items():
        if problem := names.qualified(key):
            yield causes.invalid(path, key, problem)
        if problem := names.label_value(value):
            yield causes.invalid(path, value, problem)


def check_annotations(annotations: Any, path: str) -> Iterator[Cause]:
    """Keys and total size of annotations."""
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key) + len(value)
        if problem := names.qualified(key.lower()):
            yield causes.invalid(path, key, problem)
    if size > _ANNOTATIONS_LIMIT:
        yield causes.too_long(path, _ANNOTATIONS_LIMIT)


def _check_owners(meta: Json) -> Iterator[Cause]:
    controllers = []
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        path = f"metadata.ownerReferences[{index}]"
        for field, text in (("apiVersion", "version must not be empty"), ("kind", "must not be empty"),
                            ("name", "must not be empty"), ("uid", "must not be empty")):  # fmt: skip
            if not owner.get(field):
                yield causes.invalid(f"{path}.{field}", owner.get(field) or "", text)
        if owner.get("controller"):
            controllers.append(owner)
    if len(controllers) > 1:
        first, second = (f"{item.get('kind')}/{item.get('name')}" for item in controllers[:2])
        detail = (
            f'Only one reference can have Controller set to true. Found "true" in references for {first} and {second}'
        )
        yield causes.invalid("metadata.ownerReferences", meta["ownerReferences"], detail)


def _check_finalizers(meta: Json) -> Iterator[Cause]:
    for index, text in enumerate(meta.get("finalizers") or ()):
        if problem := names.qualified(text):
            yield causes.invalid(f"metadata.finalizers[{index}]", text, problem)


def _check_kept(new: Json, old: Json) -> Iterator[Cause]:
    """Fields that never change."""
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        if new.get(field) != old.get(field):
            yield causes.invalid(f"metadata.{field}", new.get(field), "field is immutable")
    if old.get("deletionTimestamp"):
        added = [item for item in new.get("finalizers") or () if item not in (old.get("finalizers") or ())]
        if added:
            detail = "no new finalizers can be added if the object is being deleted, found new finalizers "
            yield causes.forbidden("metadata.finalizers", detail + causes.quoted(added))


def check(kind: ResourceKind, new: Json, old: Json | None) -> Iterator[Cause]:
    """Everything about the metadata of an object."""
    meta: Json = new.get("metadata") or {}
    if old is None:
        yield from check_name(kind, new)
    else:
        yield from _check_kept(meta, old.get("metadata") or {})
    yield from check_labels(meta.get("labels"), "metadata.labels")
    yield from check_annotations(meta.get("annotations"), "metadata.annotations")
    yield from _check_owners(meta)
    yield from _check_finalizers(meta)
