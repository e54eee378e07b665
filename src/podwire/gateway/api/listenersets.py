"""ListenerSets: which attach to a Gateway, and their status.

A Gateway says from which namespaces it takes ListenerSets, by default from none. Theirs come after its own listeners,
those of older sets before those of newer ones.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.attachment import allows
from podwire.gateway.api.listeners import CheckedListener
from podwire.gateway.api.references import NO_PROBLEM, ReferenceProblem
from podwire.gateway.api.status import condition, listener_status
from podwire.model.gatewayapi import GROUP, Gateway, GatewayStatus, ListenerSet, ListenerSetStatus
from podwire.model.meta import Condition, key_of

_NOT_ALLOWED = ReferenceProblem("NotAllowed", "the Gateway does not allow ListenerSets of this namespace")
_NOT_VALID = ReferenceProblem("ListenersNotValid", "no listener can be served")


def parent_of(value: ListenerSet) -> str:
    """The key of the Gateway of a ListenerSet, empty for other kinds."""
    parent = value.spec.parent_ref
    if (parent.group, parent.kind) != (GROUP, "Gateway"):
        return ""
    return f"{parent.namespace or value.metadata.namespace}/{parent.name}"


def attached_sets(
    gateway: Gateway, sets: Iterable[ListenerSet], namespaces: Mapping[str, Mapping[str, str]]
) -> tuple[ListenerSet, ...]:
    """The ListenerSets that a Gateway allows, in the order of their precedence; ``namespaces`` has their labels."""
    key = key_of(gateway.metadata)
    rule = gateway.spec.allowed_listeners.namespaces
    allowed = [
        entry
        for entry in sets
        if parent_of(entry) == key
        and allows(
            rule,
            gateway.metadata.namespace,
            entry.metadata.namespace,
            namespaces.get(entry.metadata.namespace, {}),
        )
    ]
    return tuple(sorted(allowed, key=lambda entry: (entry.metadata.creation_timestamp or "", key_of(entry.metadata))))


class ParentView(msgspec.Struct, frozen=True):
    """The Gateway of a ListenerSet: its status, the routes of each listener, and the ports that its Service has."""

    status: GatewayStatus
    attached: Mapping[str, int]
    open_ports: frozenset[int]


def refused_set(value: ListenerSet, engine: ReferenceProblem = NO_PROBLEM) -> ListenerSetStatus:
    """The status of a ListenerSet that its Gateway does not allow, or of which engines took no version."""
    generation = value.metadata.generation
    accepted = NO_PROBLEM if engine.reason else _NOT_ALLOWED
    programmed = engine if engine.reason else _NOT_ALLOWED
    return ListenerSetStatus(
        conditions=(condition("Accepted", accepted, generation), condition("Programmed", programmed, generation))
    )


def waiting_set(generation: int) -> ListenerSetStatus:
    """The status of a ListenerSet that no controller serves, as the API gives it to new ones."""
    return ListenerSetStatus(
        conditions=tuple(
            Condition(
                type=kind,
                status="Unknown",
                reason="Pending",
                message="Waiting for controller",
                observed_generation=generation,
            )
            for kind in ("Accepted", "Programmed")
        )
    )


def set_status(
    value: ListenerSet, listeners: Iterable[CheckedListener], gateway: ParentView, engine: ReferenceProblem = NO_PROBLEM
) -> ListenerSetStatus:
    """The status of a ListenerSet with its own listeners; ``engine`` is what engines refuse of it."""
    generation = value.metadata.generation
    own = tuple(listeners)
    accepted_parent = next(entry for entry in gateway.status.conditions if entry.type == "Accepted")
    parent = None
    if accepted_parent.status != "True":
        parent = ReferenceProblem("ParentNotAccepted", "the Gateway is not served")
    statuses = tuple(listener_status(entry, parent, gateway.attached, gateway.open_ports, generation) for entry in own)
    problem = parent
    if problem is None and not any(entry.served for entry in own):
        problem = _NOT_VALID
    programmed = problem
    if programmed is None and engine.reason:
        programmed = engine
    elif programmed is None and not any(
        entry.type == "Programmed" and entry.status == "True" for status in statuses for entry in status.conditions
    ):
        programmed = ReferenceProblem("Pending", "the Service of the Gateway does not have the ports yet")
    return ListenerSetStatus(
        conditions=(condition("Accepted", problem, generation), condition("Programmed", programmed, generation)),
        listeners=statuses,
    )
