"""Hints for ``service.kubernetes.io/topology-mode: Auto``: each zone gets endpoints as it has processors. Pure.

How it works: a zone is due the share of the ready endpoints that its nodes have of all processors. An endpoint serves
its own zone first. A zone with less than its minimum (its share less the 20 % by which an endpoint may be overloaded)
is given endpoints of the zone with the most above their share, the last ones in the order of their names, so that a
change moves as few as possible. No hint is given at all, and clients use every endpoint, where that cannot be fair:
with less than two zones, a node of unknown zone or size, an endpoint of unknown zone, fewer endpoints than zones, or
too few to give each zone its minimum. Nodes that are not ready and those of the control plane do not count.
Source: ``k8s.io/endpointslice/topologycache``.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from msgspec.structs import replace

from podwire.controllers.endpointslice.endpoints import Desired
from podwire.model.node import Node
from podwire.model.service import Endpoint, EndpointHints, HintTarget, Service

_ANNOTATIONS = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints")
_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_OVERLOAD = 1.2

Key = tuple[object, str]


def automatic(service: Service) -> bool:
    """Whether the Service asks for hints by zone; the annotation wins over ``trafficDistribution``."""
    found = next((text for name in _ANNOTATIONS if (text := service.metadata.annotations.get(name))), "")
    return found in ("Auto", "auto")


def shares(nodes: Iterable[Node]) -> dict[str, float]:
    """Each zone's share of the processors; empty where hints cannot be fair."""
    sizes: dict[str, int] = {}
    for node in nodes:
        labels = node.metadata.labels
        if not node.ready or any(label in labels for label in _CONTROL_PLANE):
            continue
        zone, size = node.zone, millicores(node.status.allocatable.get("cpu", ""))
        if not zone or not size:
            return {}
        sizes[zone] = sizes.get(zone, 0) + size
    total = sum(sizes.values())
    return {zone: size / total for zone, size in sizes.items()} if len(sizes) > 1 else {}


def millicores(text: str) -> int:
    """Thousandths of a processor in ``4``, ``0.5`` or ``3920m``; 0 for anything else."""
    try:
        value = float(text.removesuffix("m"))
        return max(0, int(value if text.endswith("m") else value * 1000))
    except (ValueError, OverflowError):  # int() refuses nan and inf
        return 0


def with_hints(wanted: Desired, nodes: Mapping[str, Node]) -> tuple[Desired, dict[str, str]]:
    """The endpoints with hints for zones, and by address type why there are none (empty: there are).

    Those of each address type are shared out by themselves.
    """
    by_zone = shares(nodes.values())
    hinted = {group: dict(endpoints) for group, endpoints in wanted.items()}
    reasons: dict[str, str] = {}
    for family in sorted({group.address_type for group in wanted}):
        groups = sorted((g for g in wanted if g.address_type == family), key=str)
        every = [((g, key), wanted[g][key]) for g in groups for key in sorted(wanted[g])]
        ready = [(key, e.zone or "") for key, e in every if e.conditions.ready]
        reasons[family] = unfair([zone for _, zone in ready], by_zone)
        given = share_out(ready, by_zone) if not reasons[family] else {}
        for (group, key), endpoint in every:
            hinted[group][key] = replace(endpoint, hints=_hint(endpoint, given.get((group, key), "")))
    return hinted, reasons


def _hint(endpoint: Endpoint, zone: str) -> EndpointHints | None:
    if not zone or not endpoint.conditions.ready:
        return None
    return EndpointHints(for_zones=(HintTarget(name=zone),))


def unfair(zones: list[str], by_zone: Mapping[str, float]) -> str:
    """Why endpoints in these zones cannot be shared out, in Kubernetes' words; empty when they can."""
    count = len(zones)
    if not by_zone:
        return "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
    numbers = f"({count} endpoints, {len(by_zone)} zones)"
    if count < len(by_zone):
        return f"Insufficient number of endpoints {numbers}"
    if sum(_least(share, count) for share in by_zone.values()) > count:
        return f"Minimum allocation of required endpoints exceeds overload threshold {numbers}"
    return "" if all(zones) else "One or more endpoints do not have a zone specified"


def _least(share: float, count: int) -> int:
    return ceil(share * count / _OVERLOAD)


def share_out(endpoints: Sequence[tuple[Key, str]], by_zone: Mapping[str, float]) -> dict[Key, str]:
    """The zone that each endpoint is for, given the zone it is in, where that is not :func:`unfair`."""
    count = len(endpoints)
    due = {zone: share * count for zone, share in by_zone.items()}
    least = {zone: _least(share, count) for zone, share in by_zone.items()}
    held: dict[str, list[Key]] = {zone: [] for zone in due}
    for key, zone in endpoints:
        held.setdefault(zone, []).append(key)

    def above(zone: str) -> tuple[float, str]:
        return len(held[zone]) - due.get(zone, 0.0), zone

    strangers = sorted(zone for zone in held if zone not in due)
    for zone in strangers:
        while held[zone]:
            held[min(due, key=above)].append(held[zone].pop())
    for zone in sorted(due):
        while len(held[zone]) < least[zone]:
            rich = (other for other in due if len(held[other]) > least[other])
            held[zone].append(held[max(rich, key=above)].pop())
    return {key: zone for zone, keys in held.items() for key in keys}
