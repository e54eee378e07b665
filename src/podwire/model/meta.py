"""Common parts of all Kubernetes objects: metadata, references, conditions.

Every struct here and in the sibling modules is frozen and untracked by the garbage collector (objects are trees), with
tuples for lists; unknown fields are ignored on reading. ``null`` lists and maps, which the API may send, are not
accepted: writers leave such fields out.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec


class Fact(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel", kw_only=True):
    """The settings of every struct of the model."""


T = TypeVar("T", bound=Fact)


class OwnerReference(Fact, frozen=True):
    """The owner of an object; ``controller`` marks the managing one."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Fact, frozen=True):
    """Standard object metadata; times are RFC 3339 strings as the API sends them."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Object(Fact, frozen=True):
    """An object of which only the metadata is needed."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ObjectReference(Fact, frozen=True):
    """A reference to an object, as in Events and endpoints."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class Condition(Fact, frozen=True):
    """One status condition; ``status`` is True, False or Unknown."""

    type: str
    status: str = msgspec.field(default_factory=lambda: "Unknown")  # not left out when written, as a default would be
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    last_probe_time: str | None = None
    last_update_time: str | None = None
    observed_generation: int = 0


def is_true(conditions: Iterable[Condition], condition_type: str) -> bool:
    """Whether the condition of a type has the status True."""
    return any(condition.type == condition_type and condition.status == "True" for condition in conditions)


def key_of(meta: ObjectMeta) -> str:
    """``namespace/name``, or ``name`` for a cluster-scoped object."""
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The owner reference with ``controller`` set, or None."""
    for owner in meta.owner_references:
        if owner.controller:
            return owner
    return None
