"""Each endpoint of a Service port: whether it is used, why in Kubernetes' terms, and its probability (pure)."""

from collections.abc import Iterable, Mapping

from podwire.proxy.resolve import Candidate, ExplainedEndpoint, SelectionReason
from podwire.proxy.servicemap import NodeFacts
from podwire.why.answer import EndpointChoice

Shares = Mapping[tuple[str, int], tuple[float, bool]]
"""The probability of each (address, port) by the rules, and whether the client is masqueraded for it."""


def explain_endpoints(  # noqa: PLR0913 - what is known of endpoints comes from as many sides
    explained: Iterable[ExplainedEndpoint],
    duplicates: Iterable[Candidate],
    shares: Shares,
    facts: NodeFacts,
    *,
    local: bool,
    forwarded: bool,
    remembered: bool,
) -> tuple[EndpointChoice, ...]:
    """The endpoints in the order of the explanation, then duplicate entries, then endpoints that only the kernel has.

    ``local``: chosen by policy Local. ``forwarded``: the connection goes to an endpoint at all. ``remembered``: session
    affinity keeps the client's endpoint.
    """
    choices: list[EndpointChoice] = []
    rest = dict(shares)
    for explanation in explained:
        why = explanation.local if local else explanation.cluster
        end = explanation.candidate.endpoint
        share = rest.pop((end.address, end.port), None)
        reason, message = why.value, _message(explanation.candidate, why, facts)
        if why.chosen and share is None and forwarded:
            reason, message = _passed_over(message, remembered=remembered)
        elif not why.chosen and share is not None:
            reason, message = "OnlyInKernel", f"{message}, but the rules in force use it"
        used = share is not None or (why.chosen and not forwarded)
        choices.append(_choice(explanation.candidate, used, (reason, message), share or (0.0, False)))
    choices += map(_duplicate, duplicates)
    for (address, port), (share_, masqueraded) in rest.items():
        choices.append(
            EndpointChoice(
                address=address,
                port=port,
                used=True,
                reason="OnlyInKernel",
                message="in no EndpointSlice of the Service, but the rules in force use it",
                probability=share_,
                masqueraded=masqueraded,
            )
        )
    return tuple(choices)


def dns_endpoints(candidates: Iterable[Candidate], duplicates: Iterable[Candidate]) -> tuple[EndpointChoice, ...]:
    """The endpoints of a headless Service: those that DNS returns, and the others with the reason."""
    choices = []
    for candidate in candidates:
        reason = (
            (SelectionReason.READY.value, "ready")
            if candidate.ready
            else (SelectionReason.NOT_READY.value, "not ready")
        )
        choices.append(_choice(candidate, candidate.ready, reason, (0.0, False)))
    return (*choices, *(_duplicate(candidate) for candidate in duplicates))


def _duplicate(candidate: Candidate) -> EndpointChoice:
    text = f"another entry of this address counts (slice {candidate.slice_name})"
    return _choice(candidate, False, ("Duplicate", text), (0.0, False))


def _passed_over(message: str, *, remembered: bool) -> tuple[str, str]:
    if remembered:
        return "Affinity", "session affinity keeps this client at another endpoint"
    return "NotInKernel", f"{message}, but the rules in force do not use it"


def _choice(candidate: Candidate, used: bool, reason: tuple[str, str], share: tuple[float, bool]) -> EndpointChoice:
    entry, end = candidate.entry, candidate.endpoint
    target = entry.target_ref
    return EndpointChoice(
        address=end.address,
        port=end.port,
        used=used,
        reason=reason[0],
        message=reason[1],
        probability=share[0],
        masqueraded=share[1],
        pod=f"{target.namespace}/{target.name}" if target is not None and target.kind == "Pod" else "",
        node=entry.node_name or "",
        zone=entry.zone or "",
        slice=candidate.slice_name,
    )


def _message(candidate: Candidate, why: SelectionReason, facts: NodeFacts) -> str:
    where = candidate.entry.node_name or "an unknown node"
    zones, nodes = ", ".join(sorted(candidate.zones)), ", ".join(sorted(candidate.nodes))
    return {
        SelectionReason.READY: "ready",
        SelectionReason.HINTED_FOR_NODE: f"ready, hinted for this node ({facts.name})",
        SelectionReason.HINTED_FOR_ZONE: f"ready, hinted for zone {facts.zone}, where this node is",
        SelectionReason.TERMINATING_FALLBACK: "terminating but still serving, and no endpoint is ready",
        SelectionReason.NOT_READY: "not ready",
        SelectionReason.NOT_SERVING: "terminating, and no longer serving",
        SelectionReason.TERMINATING: "terminating, and others are ready",
        SelectionReason.OTHER_NODE: f"hinted for node {nodes}; this node is {facts.name}",
        SelectionReason.OTHER_ZONE: f"hinted for zone {zones}; this node is in {facts.zone}",
        SelectionReason.NOT_LOCAL: f"on {where}; the policy is Local and this node is {facts.name}",
    }[why]
