"""Hints for ``service.kubernetes.io/topology-mode: Auto``: each zone gets endpoints as it has processors. Pure.

How it works: a zone is due the share of the ready endpoints that its nodes have of all processors. An endpoint serves
its own zone first. A zone with less than its minimum (its share less the 20 % by which an endpoint may be overloaded)
is given endpoints of the zone with the most above their share, the last ones in the order of their names, so that a
change moves as few as possible. No hint is given at all, and clients use every endpoint, where that cannot be fair:
with less than two zones, a node of unknown zone or size, an endpoint of unknown zone, fewer endpoints than zones, or
too few to give each zone its minimum. Nodes that are not ready and those of the control plane do not count.
Source: ``k8s.io/endpointslice/topologycache``.
"""

from collections.abc import Iterable, Mapping
from math import ceil

from msgspec.structs import replace

from podwire.controllers.endpointslice.endpoints import ZONE, Desired
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
        zone, size = labels.get(ZONE, ""), millicores(node.status.allocatable.get("cpu", ""))
        if not zone or not size:
            return {}
        sizes[zone] = sizes.get(zone, 0) + size
    total = sum(sizes.values())
    return {zone: size / total for zone, size in sizes.items()} if len(sizes) > 1 else {}


def millicores(text: str) -> int:
    """Thousandths of a processor in ``4``, ``0.5`` or ``3920m``; 0 for anything else."""
    try:
        value = float(text.removesuffix("m"))
    except ValueError:
        return 0
    return max(0, int(value if text.endswith("m") else value * 1000))


def with_hints(wanted: Desired, nodes: Mapping[str, Node]) -> Desired:
    """The endpoints with hints for zones, those of each address type shared out by themselves."""
    by_zone = shares(nodes.values())
    hinted = {group: dict(endpoints) for group, endpoints in wanted.items()}
    for family in {group.address_type for group in wanted}:
        groups = sorted((g for g in wanted if g.address_type == family), key=str)
        every = [((g, key), wanted[g][key]) for g in groups for key in sorted(wanted[g])]
        given = share_out([(key, e.zone or "") for key, e in every if e.conditions.ready], by_zone)
        for (group, key), endpoint in every:
            hinted[group][key] = replace(endpoint, hints=_hint(endpoint, given.get((group, key), "")))
    return hinted


def _hint(endpoint: Endpoint, zone: str) -> EndpointHints | None:
    if not zone or not endpoint.conditions.ready:
        return None
    return EndpointHints(for_zones=(HintTarget(name=zone),))


def share_out(endpoints: list[tuple[Key, str]], by_zone: Mapping[str, float]) -> dict[Key, str]:
    """The zone that each endpoint is for, given the zone it is in; empty where that cannot be fair."""
    count = len(endpoints)
    due = {zone: share * count for zone, share in by_zone.items()}
    least = {zone: ceil(part / _OVERLOAD) for zone, part in due.items()}
    if not due or count < len(due) or sum(least.values()) > count or not all(zone for _, zone in endpoints):
        return {}
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
