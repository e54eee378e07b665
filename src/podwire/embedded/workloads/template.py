"""Pods out of templates, and the hash that tells templates apart.

The template is handed on verbatim. The hash is FNV-1a (32 bit) over the template's canonical JSON, written in
Kubernetes' alphabet without vowels; it need not equal the one of kube-controller-manager, since owners are
found by comparing templates and the hash is only a name.
"""

import copy
from dataclasses import dataclass
from typing import Any

import msgspec

from podwire.model.meta import ObjectMeta, ObjectReference
from podwire.model.workload import Template

HASH_LABEL = "pod-template-hash"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodOwner:
    """A controller of pods."""

    api_version: str
    kind: str
    meta: ObjectMeta

    @property
    def reference(self) -> Json:
        """The ownerReferences entry of what it owns."""
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
        """The reference that Events carry."""
        return ObjectReference(
            api_version=self.api_version,
            kind=self.kind,
            namespace=self.meta.namespace,
            name=self.meta.name,
            uid=self.meta.uid,
            resource_version=self.meta.resource_version,
        )


def template_hash(template: Template, collisions: int | None = None) -> str:
    """The name part of a template; ``collisions`` is bumped when two templates share it."""
    value = fnv32a(msgspec.json.encode(template, order="deterministic"))
    if collisions:
        value = fnv32a(str(collisions).encode(), value)
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(value))


def fnv32a(data: bytes, start: int = 0x811C9DC5) -> int:
    """FNV-1a, 32 bit."""
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
    """The template without one label, for comparing."""
    metadata = {k: v for k, v in (template.get("metadata") or {}).items() if v is not None}
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != key}
    if labels:
        metadata["labels"] = labels
    else:
        metadata.pop("labels", None)
    return template | {"metadata": metadata}


def equal_templates(one: Template, other: Template) -> bool:
    """Whether two templates make the same pods, the hash label aside."""
    return without_label(one, HASH_LABEL) == without_label(other, HASH_LABEL)


def pod_of(template: Template, owner: PodOwner, name: str = "") -> Json:
    """A pod of the template, owned by ``owner``; without a name the API appends one to the owner's."""
    given = template.get("metadata") or {}
    kept = {key: copy.copy(given[key]) for key in ("labels", "annotations", "finalizers") if given.get(key)}
    naming = {"name": name} if name else {"generateName": f"{owner.meta.name}-"}
    metadata = naming | {"namespace": owner.meta.namespace} | kept | {"ownerReferences": [owner.reference]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(template.get("spec") or {})}
