"""Rows of the kinds of ``resource.k8s.io`` and ``flowcontrol.apiserver.k8s.io``."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.tables.cells import AGE, NONE, UNSET, Json, Printer, age, at, name, plain


def _plain(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), age(obj, now)]


def _claim(obj: Json, now: datetime) -> list[Any]:
    states = ["deleted"] if at(obj, "metadata.deletionTimestamp") else []
    states += ["allocated"] if at(obj, "status.allocation") else ["pending"]
    states += ["reserved"] if at(obj, "status.reservedFor") else []
    return [name(obj), ",".join(states), age(obj, now)]


def _slice(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), at(obj, "spec.nodeName") or UNSET, at(obj, "spec.driver", ""), at(obj, "spec.pool.name", ""),
            age(obj, now)]  # fmt: skip


def _flow_schema(obj: Json, now: datetime) -> list[Any]:
    dangling: Json = next((c for c in at(obj, "status.conditions", []) if c.get("type") == "Dangling"), {})
    return [
        name(obj), at(obj, "spec.priorityLevelConfiguration.name", ""), at(obj, "spec.matchingPrecedence", 0),
        at(obj, "spec.distinguisherMethod.type", NONE), age(obj, now), dangling.get("status", "?"),
    ]  # fmt: skip


def _priority_level(obj: Json, now: datetime) -> list[Any]:
    kind = at(obj, "spec.type", "")
    shares = at(obj, f"spec.{kind.lower()}.nominalConcurrencyShares", NONE)
    queuing = at(obj, "spec.limited.limitResponse.queuing", {})
    sizes = [queuing.get(field, NONE) for field in ("queues", "handSize", "queueLengthLimit")]
    return [name(obj), kind, shares, *sizes, age(obj, now)]


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("resource.k8s.io", "DeviceClass"): Printer((*plain(), AGE), _plain),
    ("resource.k8s.io", "ResourceClaim"): Printer((*plain("State"), AGE), _claim),
    ("resource.k8s.io", "ResourceClaimTemplate"): Printer((*plain(), AGE), _plain),
    ("resource.k8s.io", "ResourceSlice"): Printer((*plain("Node", "Driver", "Pool"), AGE), _slice),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): Printer(
        (*plain("PriorityLevel", "MatchingPrecedence", "DistinguisherMethod"), AGE, *plain("MissingPL")[1:]),
        _flow_schema,
    ),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): Printer(
        (*plain("Type", "NominalConcurrencyShares", "Queues", "HandSize", "QueueLengthLimit"), AGE), _priority_level
    ),
}
"""By group and kind."""
