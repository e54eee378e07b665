"""Differences as text, by workload, and as plain data (pure)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from podwire.model.wording import count
from podwire.policy.diff.compare import (
    OTHER,
    ClusterComparison,
    DecidedVerdict,
    DecidingRule,
    Peers,
    PortChange,
    VerdictDifference,
)
from podwire.policy.diff.peers import EXTERNAL, NODES, PODS
from podwire.policy.ports import LAST_PORT, PROTOCOLS
from podwire.policy.rules import INGRESS

Line = Callable[[str, str, str], str]
"""Returns ``file:line`` of a field, by kind, key and path; empty when no file has the object."""

_SHOWN_NAMES = 4
"""The most names in a line of text."""


def text(comparison: ClusterComparison, lines: tuple[Line, Line]) -> Iterator[str]:
    """The comparison as lines of text; ``lines`` finds the lines of fields of the old side and of the new side."""
    groups = comparison.groups
    pods = _by_workload(groups.workloads, groups.workloads)
    for difference in comparison.differences:
        source = ", ".join(_shortened(_names(difference.sources, groups.workloads, pods)))
        destination = ", ".join(_shortened(_names(difference.destinations, groups.workloads, pods)))
        own = _own(difference)
        yield f"{source} -> {destination}{own}{_family(difference)}"
        for (before, after), ports in _by_outcome(difference.changes).items():
            yield f"  now {'allowed' if after.allowed else 'denied'}: {ports}"
            yield f"    before: {_outcome(before, lines[0])}"
            yield f"    after:  {_outcome(after, lines[1])}"
    for change, only in (("gone", groups.only_old), ("new", groups.only_new)):
        if only:
            yield f"{change}, so not compared: pods {', '.join(_shortened(only))}"
    denied, allowed = _pairs(comparison.differences)
    yield f"{count(denied, 'pair')} now denied, {count(allowed, 'pair')} now allowed"


def data(comparison: ClusterComparison, lines: tuple[Line, Line]) -> dict[str, Any]:
    """The comparison as plain data."""
    groups = comparison.groups
    pods = _by_workload(groups.workloads, groups.workloads)
    return {
        "differences": [_data(difference, groups.workloads, pods, lines) for difference in comparison.differences],
        "onlyOld": list(groups.only_old),
        "onlyNew": list(groups.only_new),
    }


def _data(
    difference: VerdictDifference, workloads: Mapping[str, str], pods: Mapping[str, list[str]], lines: tuple[Line, Line]
) -> dict[str, Any]:
    return {
        "from": _ends(difference.sources, workloads),
        "to": _ends(difference.destinations, workloads),
        "ownNode": difference.own_node,
        "families": list(difference.families),
        "changes": [
            {
                "protocol": change.protocol,
                "first": change.first,
                "last": change.last,
                "before": _verdict(change.before, lines[0]),
                "after": _verdict(change.after, lines[1]),
            }
            for change in difference.changes
        ],
    }


def _ends(every: Iterable[Peers], workloads: Mapping[str, str]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for workload, pods in _by_workload(_all(every, PODS), workloads).items():
        result.append({"workload": workload, "pods": pods})
    result += ({"node": name} for name in _all(every, NODES))
    result += ({"external": list(ends.names) or "rest"} for ends in every if ends.kind == EXTERNAL)
    return result


def _verdict(outcome: DecidedVerdict, line: Line) -> dict[str, Any]:
    reasons = [
        {
            "direction": reason.direction,
            "policy": reason.policy,
            "rule": reason.rule,
            "isolatedBy": list(reason.isolated_by),
            "where": _where(reason, line),
        }
        for reason in outcome.reasons
    ]
    return {"allowed": outcome.allowed, "reasons": reasons}


def _all(every: Iterable[Peers], kind: str) -> list[str]:
    return [name for ends in every if ends.kind == kind for name in ends.names]


def _by_workload(pods: Iterable[str], workloads: Mapping[str, str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for pod in sorted(pods):
        result.setdefault(workloads[pod], []).append(pod)
    return result


def _names(every: Sequence[Peers], workloads: Mapping[str, str], whole: Mapping[str, list[str]]) -> Iterator[str]:
    """Workloads, nodes and ranges; pods where only some pods of a workload are meant."""
    for workload, pods in _by_workload(_all(every, PODS), workloads).items():
        number = len(whole[workload])
        if len(pods) < number:
            yield f"{len(pods)} of {number} pods of {workload} ({', '.join(_shortened(pods))})"
        else:
            yield workload if workload.startswith("Pod ") else f"{workload} ({number} pod{'s' * (number != 1)})"
    yield from (f"Node {name}" for name in _all(every, NODES))
    for ends in every:
        if ends.kind == EXTERNAL:
            yield "external" if ends.rest else " ".join(_shortened(ends.names))


def _own(difference: VerdictDifference) -> str:
    if difference.own_node:
        return " (on the same node)"
    both = (*difference.sources, *difference.destinations)
    return " (not on the same node)" if any(ends.kind == NODES for ends in both) else ""


def _family(difference: VerdictDifference) -> str:
    if len(difference.families) > 1:
        return ""
    return f" (IPv{difference.families[0]})"


def _by_outcome(changes: Iterable[PortChange]) -> dict[tuple[DecidedVerdict, DecidedVerdict], str]:
    """The ports with each outcome before and after."""
    result: dict[tuple[DecidedVerdict, DecidedVerdict], list[PortChange]] = {}
    for change in changes:
        result.setdefault((change.before, change.after), []).append(change)
    return {outcomes: _ports(changes_of_outcome) for outcomes, changes_of_outcome in result.items()}


def _ports(changes: Sequence[PortChange]) -> str:
    """Ports as people write them; ``everything`` for all ports of all protocols."""
    ranges_by_protocol: dict[str, list[str]] = {}
    for change in changes:
        ranges_by_protocol.setdefault(change.protocol, []).append(_range(change.first, change.last))
    if set(ranges_by_protocol) == {*PROTOCOLS, OTHER} and all(ranges == [""] for ranges in ranges_by_protocol.values()):
        return "everything"
    named = {OTHER: "protocols without ports"}
    return "; ".join(
        f"{named.get(name, name)} {', '.join(_shortened(ranges, 8))}".rstrip()
        for name, ranges in ranges_by_protocol.items()
    )


def _range(first: int, last: int) -> str:
    if first <= 1 and last == LAST_PORT:
        return ""
    return str(first) if first == last else f"{max(first, 1)}-{last}"


def _outcome(outcome: DecidedVerdict, line: Line) -> str:
    if outcome.allowed:
        reasons = " and ".join(_reason(reason, line) for reason in outcome.reasons)
        return f"allowed by {reasons}" if reasons else "allowed, no policy applies"
    return "denied: " + "; ".join(_reason(reason, line) for reason in outcome.reasons)


def _reason(reason: DecidingRule, line: Line) -> str:
    direction = reason.direction.lower()
    if not reason.policy:
        return f"no {direction} rule of {', '.join(_shortened(reason.isolated_by))} allows it"
    where = _where(reason, line)
    return f"{reason.policy} {direction} {reason.rule}" + (f" ({where})" if where else "")


def _where(reason: DecidingRule, line: Line) -> str:
    """The line of the rule."""
    if not reason.policy:
        return ""
    kind = "NetworkPolicy" if "/" in reason.policy else "ClusterNetworkPolicy"
    section = "ingress" if reason.direction == INGRESS else "egress"
    return line(kind, reason.policy, f"spec.{section}[{reason.rule}]")


def _shortened(names: Iterable[str], most: int = _SHOWN_NAMES) -> list[str]:
    listed = list(names)
    return listed if len(listed) <= most + 1 else [*listed[:most], f"{len(listed) - most} more"]


def _pairs(differences: Iterable[VerdictDifference]) -> tuple[int, int]:
    """How many pairs of ends lose a connection, and how many gain one; both families of a pair count once."""
    denied: set[tuple[str, str, bool]] = set()
    allowed: set[tuple[str, str, bool]] = set()
    for difference in differences:
        sources, destinations = (tuple(_single(peers)) for peers in (difference.sources, difference.destinations))
        pairs = {
            (source, destination, difference.own_node)
            for source in sources
            for destination in destinations
            if source != destination
        }
        if any(not change.after.allowed for change in difference.changes):
            denied |= pairs
        if any(change.after.allowed for change in difference.changes):
            allowed |= pairs
    return len(denied), len(allowed)


def _single(every: Iterable[Peers]) -> Iterator[str]:
    """Each pod and node, and each set of external addresses as one end."""
    for ends in every:
        if ends.kind == EXTERNAL:
            yield f"external {ends.names}"
        else:
            yield from (f"{ends.kind} {name}" for name in ends.names)
