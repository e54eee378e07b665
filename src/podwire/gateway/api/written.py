"""Status values in their API form, with the time at which each condition got its status."""

from collections.abc import Iterable
from typing import Any

import msgspec

from podwire.model.backendtls import PolicyAncestorStatus
from podwire.model.gatewayapi import (
    GatewayClassStatus,
    GatewayStatus,
    ListenerSetStatus,
    ListenerStatus,
    ParentReference,
    RouteParentStatus,
)
from podwire.model.meta import Condition

Json = dict[str, Any]


def with_times(conditions: Iterable[Condition], before: Iterable[Condition], now: str) -> tuple[Condition, ...]:
    """Conditions with their time: that of before where the status is the same, else now."""
    known = {condition.type: condition for condition in before}
    result = []
    for condition in conditions:
        old = known.get(condition.type)
        same = old is not None and old.status == condition.status and old.last_transition_time
        since = old.last_transition_time if old is not None and same else now
        result.append(msgspec.structs.replace(condition, last_transition_time=since))
    return tuple(result)


def timed_class(status: GatewayClassStatus, before: GatewayClassStatus, now: str) -> GatewayClassStatus:
    """The status of a class with times."""
    return msgspec.structs.replace(status, conditions=with_times(status.conditions, before.conditions, now))


def timed_gateway(status: GatewayStatus, before: GatewayStatus, now: str) -> GatewayStatus:
    """The status of a Gateway with times."""
    listeners = _timed_listeners(status.listeners, before.listeners, now)
    conditions = with_times(status.conditions, before.conditions, now)
    return msgspec.structs.replace(status, conditions=conditions, listeners=listeners)


def timed_set(status: ListenerSetStatus, before: ListenerSetStatus, now: str) -> ListenerSetStatus:
    """The status of a ListenerSet with times."""
    listeners = _timed_listeners(status.listeners, before.listeners, now)
    conditions = with_times(status.conditions, before.conditions, now)
    return ListenerSetStatus(conditions=conditions, listeners=listeners)


def _timed_listeners(
    listeners: tuple[ListenerStatus, ...], before: tuple[ListenerStatus, ...], now: str
) -> tuple[ListenerStatus, ...]:
    known = {listener.name: listener.conditions for listener in before}
    return tuple(
        msgspec.structs.replace(entry, conditions=with_times(entry.conditions, known.get(entry.name, ()), now))
        for entry in listeners
    )


def merged_parents(
    own: Iterable[RouteParentStatus], before: Iterable[RouteParentStatus], controller: str, now: str
) -> tuple[RouteParentStatus, ...]:
    """The parents of a route: those of other controllers as they are, then ours with times."""
    before = tuple(before)
    known = {entry.parent_ref: entry.conditions for entry in before if entry.controller_name == controller}
    return (
        *(entry for entry in before if entry.controller_name != controller),
        *(
            msgspec.structs.replace(
                entry, conditions=with_times(entry.conditions, known.get(entry.parent_ref, ()), now)
            )
            for entry in own
        ),
    )


def merged_ancestors(
    own: Iterable[PolicyAncestorStatus], before: Iterable[PolicyAncestorStatus], controller: str, now: str
) -> tuple[PolicyAncestorStatus, ...]:
    """The ancestors of a policy: those of other controllers as they are, then ours with times."""
    before = tuple(before)
    known = {entry.ancestor_ref: entry.conditions for entry in before if entry.controller_name == controller}
    return (
        *(entry for entry in before if entry.controller_name != controller),
        *(
            msgspec.structs.replace(
                entry, conditions=with_times(entry.conditions, known.get(entry.ancestor_ref, ()), now)
            )
            for entry in own
        ),
    )


def class_json(status: GatewayClassStatus) -> Json:
    """The status of a class."""
    features = [{"name": feature.name} for feature in status.supported_features]
    return {"conditions": _conditions(status.conditions), "supportedFeatures": features}


def gateway_json(status: GatewayStatus) -> Json:
    """The status of a Gateway."""
    return {
        "addresses": [{"type": entry.type, "value": entry.value} for entry in status.addresses],
        "conditions": _conditions(status.conditions),
        "listeners": [_listener(entry) for entry in status.listeners],
        "attachedListenerSets": status.attached_listener_sets,
    }


def set_json(status: ListenerSetStatus) -> Json:
    """The status of a ListenerSet."""
    return {
        "conditions": _conditions(status.conditions),
        "listeners": [_listener(entry) for entry in status.listeners],
    }


def ancestors_json(ancestors: Iterable[PolicyAncestorStatus]) -> Json:
    """The status of a policy."""
    return {
        "ancestors": [
            {
                "ancestorRef": _parent(entry.ancestor_ref),
                "controllerName": entry.controller_name,
                "conditions": _conditions(entry.conditions),
            }
            for entry in ancestors
        ]
    }


def parents_json(parents: Iterable[RouteParentStatus]) -> Json:
    """The status of a route."""
    return {
        "parents": [
            {
                "parentRef": _parent(entry.parent_ref),
                "controllerName": entry.controller_name,
                "conditions": _conditions(entry.conditions),
            }
            for entry in parents
        ]
    }


def _listener(status: ListenerStatus) -> Json:
    return {
        "name": status.name,
        "supportedKinds": [{"group": kind.group, "kind": kind.kind} for kind in status.supported_kinds],
        "attachedRoutes": status.attached_routes,
        "conditions": _conditions(status.conditions),
    }


def _parent(reference: ParentReference) -> Json:
    value = {
        "group": reference.group,
        "kind": reference.kind,
        "namespace": reference.namespace,
        "name": reference.name,
        "sectionName": reference.section_name,
        "port": reference.port,
    }
    return {name: field for name, field in value.items() if field is not None}


def _conditions(conditions: Iterable[Condition]) -> list[Json]:
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": condition.observed_generation,
            "lastTransitionTime": condition.last_transition_time,
        }
        for condition in conditions
    ]
