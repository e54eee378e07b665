"""Hints for ``service.kubernetes.io/topology-mode: Auto``: each zone gets endpoints in proportion to its processors.
Pure.

How it works: a zone's share of the ready endpoints is the share of its nodes in all processors. An endpoint first
serves its own zone. A zone with less than its minimum (its share less the 20 % by which an endpoint may be overloaded)
gets endpoints of the zone that exceeds its share most, the last ones in the order of their names, so that a change
moves as few as possible. There are no hints, and clients use every endpoint, when the shares cannot be fair: fewer than
two zones, a node of unknown zone or size, an endpoint of unknown zone, fewer endpoints than zones, or too few to give
each zone its minimum. Nodes that are not ready and control plane nodes do not count.

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
    """Whether the Service requests hints by zone; the annotation takes precedence over ``trafficDistribution``."""
    mode = next((text for name in _ANNOTATIONS if (text := service.metadata.annotations.get(name))), "")
    return mode in ("Auto", "auto")


def shares(nodes: Iterable[Node]) -> dict[str, float]:
    """Each zone's share of the processors; empty when hints cannot be fair."""
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


def with_hints(desired: Desired, nodes: Mapping[str, Node]) -> tuple[Desired, dict[str, str]]:
    """The endpoints with hints for zones, and by address type why there are no hints (empty: there are).

    The endpoints of each address type are distributed separately.
    """
    by_zone = shares(nodes.values())
    hinted = {group: dict(endpoints) for group, endpoints in desired.items()}
    reasons: dict[str, str] = {}
    for family in sorted({group.address_type for group in desired}):
        groups = sorted((g for g in desired if g.address_type == family), key=str)
        every = [((g, key), desired[g][key]) for g in groups for key in sorted(desired[g])]
        ready = [(key, e.zone or "") for key, e in every if e.conditions.ready]
        reasons[family] = unfair([zone for _, zone in ready], by_zone)
        zones_by_endpoint = share_out(ready, by_zone) if not reasons[family] else {}
        for (group, key), endpoint in every:
            hinted[group][key] = replace(endpoint, hints=_hint(endpoint, zones_by_endpoint.get((group, key), "")))
    return hinted, reasons


def _hint(endpoint: Endpoint, zone: str) -> EndpointHints | None:
    if not zone or not endpoint.conditions.ready:
        return None
    return EndpointHints(for_zones=(HintTarget(name=zone),))


def unfair(zones: list[str], by_zone: Mapping[str, float]) -> str:
    """Why endpoints in these zones cannot be distributed, in Kubernetes' words; empty when they can."""
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
    """The zone that each endpoint serves, from the zone of each endpoint; requires that :func:`unfair` is empty."""
    count = len(endpoints)
    due = {zone: share * count for zone, share in by_zone.items()}
    least = {zone: _least(share, count) for zone, share in by_zone.items()}
    endpoints_by_zone: dict[str, list[Key]] = {zone: [] for zone in due}
    for key, zone in endpoints:
        endpoints_by_zone.setdefault(zone, []).append(key)

    def above(zone: str) -> tuple[float, str]:
        return len(endpoints_by_zone[zone]) - due.get(zone, 0.0), zone

    zones_without_share = sorted(zone for zone in endpoints_by_zone if zone not in due)
    for zone in zones_without_share:
        while endpoints_by_zone[zone]:
            endpoints_by_zone[min(due, key=above)].append(endpoints_by_zone[zone].pop())
    for zone in sorted(due):
        while len(endpoints_by_zone[zone]) < least[zone]:
            donors = (other for other in due if len(endpoints_by_zone[other]) > least[other])
            endpoints_by_zone[zone].append(endpoints_by_zone[max(donors, key=above)].pop())
    return {key: zone for zone, keys in endpoints_by_zone.items() for key in keys}
