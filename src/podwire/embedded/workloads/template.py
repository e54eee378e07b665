"""Pods from templates, and the hash that distinguishes templates.

The content of the template is not changed. The hash is FNV-1a (32 bit) over the template's canonical JSON, written in
Kubernetes' alphabet without vowels. The hash differs from that of kube-controller-manager, which does no harm: owners
are found by comparing templates, and the hash is only part of a name.
"""

import copy
from typing import Any

import msgspec

from podwire.model.meta import ObjectMeta, ObjectReference
from podwire.model.workload import Template

HASH_LABEL = "pod-template-hash"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
Json = dict[str, Any]


class PodOwner(msgspec.Struct, frozen=True):
    """A controller of pods."""

    api_version: str
    kind: str
    meta: ObjectMeta

    @property
    def reference(self) -> Json:
        """The entry in ``ownerReferences`` of the objects that the controller owns."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.meta.name,
            "uid": self.meta.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    @property
    def subject(self) -> ObjectReference:
        """The reference to the owner in Events."""
        return ObjectReference(
            api_version=self.api_version,
            kind=self.kind,
            namespace=self.meta.namespace,
            name=self.meta.name,
            uid=self.meta.uid,
            resource_version=self.meta.resource_version,
        )


def template_hash(template: Template, collisions: int | None = None) -> str:
    """The hash of a template for names; a caller increments ``collisions`` when two templates have one hash."""
    value = fnv32a(msgspec.json.encode(template, order="deterministic"))
    if collisions:
        value = fnv32a(str(collisions).encode(), value)
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(value))


def fnv32a(data: bytes, start: int = 0x811C9DC5) -> int:
    """The 32 bit FNV-1a hash of bytes."""
    value = start
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def with_label(template: Template, key: str, value: str) -> Template:
    """A copy of the template with one more label."""
    metadata = dict(template.get("metadata") or {})
    metadata["labels"] = dict(metadata.get("labels") or {}) | {key: value}
    return template | {"metadata": metadata}


def without_label(template: Template, key: str) -> Template:
    """The template without one label, for comparison."""
    metadata = {k: v for k, v in (template.get("metadata") or {}).items() if v is not None}
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != key}
    if labels:
        metadata["labels"] = labels
    else:
        metadata.pop("labels", None)
    return template | {"metadata": metadata}


def equal_templates(first: Template, second: Template) -> bool:
    """Whether two templates are equal apart from the hash label."""
    return without_label(first, HASH_LABEL) == without_label(second, HASH_LABEL)


def pod_of(template: Template, owner: PodOwner, name: str = "") -> Json:
    """A pod of the template, owned by ``owner``; without a name the API server generates one from the owner's name."""
    source = template.get("metadata") or {}
    copied = {key: copy.copy(source[key]) for key in ("labels", "annotations", "finalizers") if source.get(key)}
    naming = {"name": name} if name else {"generateName": f"{owner.meta.name}-"}
    metadata = naming | {"namespace": owner.meta.namespace} | copied | {"ownerReferences": [owner.reference]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(template.get("spec") or {})}
