"""An answer of ``podwire why`` as text for people: short lines, the most important first (pure)."""

from collections.abc import Iterable, Iterator, Sequence

from podwire.model.wording import percent
from podwire.why import policy_text, route_text
from podwire.why.answer import Answer, EndpointChoice, Hop, MatchedRule, ServiceMatch

_LABEL = 10
_OUTCOME_TEXTS = {
    "forwarded": "forwarded",
    "refused": "REFUSED",
    "dropped": "DROPPED",
    "untouched": "not touched by any Service",
}


def render(answer: Answer) -> Iterator[str]:
    """The lines of the whole answer."""
    yield f"{answer.source} -> {answer.target} {answer.protocol}"
    by_others = [*policy_text.outcome(answer), *route_text.outcome(answer), *_ended(answer)]
    yield ""
    yield from by_others
    for number, hop in enumerate(answer.hops):
        if number:
            yield ""
            yield f"then on {hop.node}"
        yield from _hop(hop, "services" if by_others else "outcome")
    yield from policy_text.policies(answer)
    yield from route_text.routes(answer)
    for finding in answer.findings:
        if finding.outcome:
            continue
        yield ""
        yield _line(finding.part, finding.message)
    yield from _rules(answer)
    if answer.notes:
        yield ""
        yield from (_line("note", note) for note in answer.notes)


def _ended(answer: Answer) -> Iterator[str]:
    """The line ``outcome`` where another part ends the connection."""
    for finding in answer.findings:
        if finding.outcome:
            yield _line("outcome", f"{_OUTCOME_TEXTS[finding.outcome]} by {finding.part}: {finding.message}")


def _hop(hop: Hop, label: str) -> Iterator[str]:
    """The lines of one hop; ``label`` precedes the outcome by Services: ``outcome``, or ``services``.

    With ``services``, policies decide the outcome, on the nodes of the pods; the node and rules of the hop then follow
    as part of the line about Services.
    """
    yield _line(label, f"{_OUTCOME_TEXTS[hop.outcome]}: {hop.message}")
    rules = f"the {hop.mode} rules in its kernel" if hop.state == "held" else f"the {hop.mode} rules it should have"
    if hop.mode:
        decided = ("decided", "") if label == "outcome" else ("", "decided ")
        yield _line(decided[0], f"{decided[1]}on {hop.node}, by {rules}")
    if hop.service is not None:
        yield from _service(hop.service)
    if hop.snat is not None:
        verb = "masqueraded" if hop.snat.masqueraded else "kept"
        yield _line("source", f"{verb}: {hop.snat.message}")
    if hop.affinity is not None:
        sentence = f"ClientIP, an endpoint is kept for {hop.affinity.timeout_seconds} s"
        yield _line("affinity", f"{sentence}; {_remembered(hop.affinity.entries)}")
        yield from (_line("", entry) for entry in hop.affinity.entries)
    yield from (_line("flow", f"known, keeps its endpoint: {flow}") for flow in hop.flows)
    yield from _lists(hop)


def _service(service: ServiceMatch) -> Iterator[str]:
    port = f", port {service.port_name}" if service.port_name else ""
    number = f" {service.port}/{service.protocol}" if service.port else ""
    by = f", by its {service.frontend}" if service.frontend != "Name" else ""
    yield _line("service", f"{service.namespace}/{service.name}{port}{number} ({service.type}){by}")
    if service.policy:
        yield _line("traffic", service.policy)
    for other in service.also_claimed_by:
        yield _line("conflict", f"Service {other} names the same address and port, and does not have it")


def _lists(hop: Hop) -> Iterator[str]:
    if hop.endpoints:
        yield ""
        yield from _endpoints(hop.endpoints)
    if hop.drift:
        yield ""
        yield "differs from the plan (+ is missing, - is extra)"
        yield from (f"  {line.sign} {line.where}: {line.text}" for line in hop.drift)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _remembered(entries: Sequence[str]) -> str:
    return "this client has one:" if entries else "this client has none yet"


def _endpoints(endpoints: Sequence[EndpointChoice]) -> Iterator[str]:
    rows = [("endpoint", "used", "chance", "why", "pod", "node", "zone")]
    for endpoint in endpoints:
        address = (
            f"[{endpoint.address}]:{endpoint.port}"
            if ":" in endpoint.address
            else f"{endpoint.address}:{endpoint.port}"
        )
        chance = percent(endpoint.probability) if endpoint.probability else "-"
        mark = ", masqueraded" if endpoint.masqueraded and not all(e.masqueraded for e in endpoints if e.used) else ""
        used = "yes" if endpoint.used else "no"
        rows.append(
            (
                address,
                used,
                chance,
                endpoint.message + mark,
                endpoint.pod or "-",
                endpoint.node or "-",
                endpoint.zone or "-",
            )
        )
    yield from _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    columns = [column for column in zip(*rows, strict=True) if any(cell != "-" for cell in column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _rules(answer: Answer) -> Iterator[str]:
    """The rules of all nodes, those of Services first."""
    several = len(answer.hops) > 1
    for hop in answer.hops:
        if hop.steps:
            where = f" on {hop.node}" if several else ""
            yield ""
            yield f"rules{where}, in the order in which they matched"
            yield from _steps(hop.steps)
    yield from policy_text.rules(answer)
    for finding in answer.findings:
        if finding.steps:
            yield ""
            yield f"rules of {finding.part}"
            yield from _steps(finding.steps)


def _steps(steps: Iterable[MatchedRule]) -> Iterator[str]:
    header = ""
    for step in steps:
        if step.where != header:
            header = step.where
            yield f"  {header}"
        yield f"      {step.rule}"
        yield from (f"        {element}" for element in step.elements)
