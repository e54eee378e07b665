"""Plans the fewest changes that make the slices contain the desired endpoints. Pure.

How it works: an endpoint stays in its slice; an endpoint that is no longer desired is removed from it; a changed one is
replaced in place. New endpoints first fill slices that change anyway, then the fullest slice with room for all
remaining ones, then new slices. An empty slice is deleted, except one per address type when a Service has no endpoint
at all, so that consumers see "none" rather than no slice. At most 100 endpoints per slice.

Invariants: afterwards no endpoint is in two slices; planning again with the result changes nothing.

Source: ``k8s.io/endpointslice`` (reconciler.go, ``reconcileByPortMapping``).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from podwire.controllers.endpointslice.endpoints import Desired, Group, identity
from podwire.model.meta import ObjectMeta, OwnerReference
from podwire.model.service import (
    HEADLESS_LABEL,
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
    Endpoint,
    EndpointSlice,
    Service,
)

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
_CAPACITY = 100


class Origin(msgspec.Struct, frozen=True):
    """The origin of a Service's endpoints: the manager of the slices, and their owner."""

    manager: str
    kind: str
    labels: Mapping[str, str]
    owner: ObjectMeta
    annotations: Mapping[str, str] | None = None
    """Annotations of the slices, besides the time of the change; None: annotations of others stay."""


def of_service(service: Service) -> Origin:
    """The origin of slices with pods as endpoints: they belong to the Service."""
    labels = dict(service.metadata.labels)
    labels.pop(HEADLESS_LABEL, None)
    if service.headless:
        labels[HEADLESS_LABEL] = ""
    return Origin(MANAGER, "Service", labels, service.metadata)


class SliceChanges(msgspec.Struct):
    """Slices to create (without a name), to update (whole), to delete (by name)."""

    create: list[EndpointSlice] = msgspec.field(default_factory=list)
    update: list[EndpointSlice] = msgspec.field(default_factory=list)
    delete: list[str] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.create or self.update or self.delete)


class _Slot(msgspec.Struct):
    """A slice in the plan; ``before`` is None for a new one."""

    before: EndpointSlice | None
    endpoints: dict[str, Endpoint]
    touched: bool = False

    @property
    def room(self) -> int:
        return _CAPACITY - len(self.endpoints)


def plan(
    origin: Origin,
    desired: Desired,
    slices: Sequence[EndpointSlice],
    families: Sequence[str],
    trigger_time: str,
) -> SliceChanges:
    """The changes that make ``slices`` (those of this controller) contain ``desired``."""
    changes = SliceChanges()
    by_group: dict[Group, list[EndpointSlice]] = {}
    for item in sorted(slices, key=lambda s: s.metadata.name):
        by_group.setdefault(Group(item.address_type, item.ports or ()), []).append(item)
    for group, endpoints in desired.items():
        slots = _fill(endpoints, by_group.pop(group, ()))
        _settle(origin, group, slots, trigger_time, changes)
    other_slices = [item for items in by_group.values() for item in items]
    _placeholders(origin, desired, other_slices, families, changes)
    return changes


def labels_of(origin: Origin) -> dict[str, str]:
    """The labels of the slices: those of their owner, and those that Kubernetes defines."""
    meaning = {SERVICE_NAME_LABEL: origin.owner.name, MANAGED_BY: origin.manager}
    return {key: value for key, value in origin.labels.items() if key not in meaning} | meaning


def _fill(desired: dict[str, Endpoint], slices: Iterable[EndpointSlice]) -> list[_Slot]:
    slots: list[_Slot] = []
    unplaced = dict(desired)
    for item in slices:
        before = {identity(endpoint): endpoint for endpoint in item.endpoints or ()}
        staying = {key: unplaced.pop(key) for key in before if key in unplaced}
        slots.append(_Slot(item, staying, touched=staying != before or len(before) != len(item.endpoints or ())))
    queue = list(unplaced.items())
    for slot in slots:
        if slot.touched:
            queue = _pour(queue, slot)
    while queue:
        fits = [slot for slot in slots if slot.room >= min(len(queue), _CAPACITY)]
        slot = min(fits, key=lambda s: s.room) if fits else _Slot(None, {})
        if not fits:
            slots.append(slot)
        queue = _pour(queue, slot)
    return slots


def _pour(queue: list[tuple[str, Endpoint]], slot: _Slot) -> list[tuple[str, Endpoint]]:
    moved, rest = queue[: slot.room], queue[slot.room :]
    if moved:
        slot.endpoints.update(moved)
        slot.touched = True
    return rest


def _settle(origin: Origin, group: Group, slots: list[_Slot], trigger_time: str, changes: SliceChanges) -> None:
    labels = labels_of(origin)
    for slot in slots:
        endpoints = tuple(slot.endpoints.values())
        if slot.before is None:
            changes.create.append(new_slice(origin, group, endpoints, trigger_time))
        elif not endpoints:
            changes.delete.append(slot.before.metadata.name)
        elif (
            slot.touched
            or slot.before.metadata.labels != labels
            or _annotations(slot.before) != _annotations(slot.before, origin)
        ):
            changes.update.append(_updated(origin, slot.before, endpoints, trigger_time if slot.touched else ""))


def _placeholders(
    origin: Origin,
    desired: Desired,
    other_slices: Sequence[EndpointSlice],
    families: Sequence[str],
    changes: SliceChanges,
) -> None:
    served = {group.address_type for group in desired}
    placeholders: set[str] = set()
    for item in other_slices:
        family = item.address_type
        if family in families and family not in served | placeholders:
            placeholders.add(family)
            labels = labels_of(origin)
            if item.endpoints or item.ports or item.metadata.labels != labels:
                empty = _updated(origin, item, (), "")
                changes.update.append(msgspec.structs.replace(empty, ports=()))
        else:
            changes.delete.append(item.metadata.name)
    for family in families:
        if family not in served | placeholders:
            changes.create.append(new_slice(origin, Group(family, ()), (), ""))


def _annotations(item: EndpointSlice | None, origin: Origin | None = None) -> dict[str, str]:
    """The annotations of a slice without the time of its change: the present ones, or those of its origin."""
    if origin is not None and origin.annotations is not None:
        return dict(origin.annotations)
    annotations = item.metadata.annotations if item is not None else {}
    return {key: text for key, text in annotations.items() if key != TRIGGER_TIME_ANNOTATION}


def _updated(
    origin: Origin, before: EndpointSlice, endpoints: tuple[Endpoint, ...], trigger_time: str
) -> EndpointSlice:
    annotations = _annotations(before, origin) | ({TRIGGER_TIME_ANNOTATION: trigger_time} if trigger_time else {})
    metadata = msgspec.structs.replace(before.metadata, labels=labels_of(origin), annotations=annotations)
    return msgspec.structs.replace(before, metadata=metadata, endpoints=endpoints)


def new_slice(origin: Origin, group: Group, endpoints: tuple[Endpoint, ...], trigger_time: str) -> EndpointSlice:
    """A new slice of the Service, without a name."""
    meta = origin.owner
    owner = OwnerReference(
        api_version="v1",
        kind=origin.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=f"{meta.name}-",
            namespace=meta.namespace,
            labels=labels_of(origin),
            annotations=_annotations(None, origin) | ({TRIGGER_TIME_ANNOTATION: trigger_time} if trigger_time else {}),
            owner_references=(owner,),
        ),
        address_type=group.address_type,
        endpoints=endpoints,
        ports=group.ports,
    )
