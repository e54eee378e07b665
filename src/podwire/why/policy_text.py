"""The verdicts of policies on a connection as text: in one line, for logs and lists, and in full (pure)."""

from collections.abc import Iterator, Sequence

from podwire.model.wording import percent
from podwire.why.answer import Answer, DirectionVerdict, NodeEnforcement, PolicyVerdict, RuleMatch, RuleTerm

_LABEL = 10
_NAMED, _ISOLATING = 3, 8
"""The number of ends, and of isolating policies, that are named; further ones are only counted."""


def one_line(protocol: str, port: int, egress: DirectionVerdict, ingress: DirectionVerdict) -> str:
    """Source, destination and port, and the verdicts of both directions."""
    subject = _subject(protocol, port, egress, ingress)
    denying = [verdict for verdict in (egress, ingress) if not verdict.allowed]
    if denying:
        first = f"{subject}: dropped at {denying[0].direction.lower()}: {denying[0].message}"
        return first if len(denying) == 1 else f"{first}; at ingress it would be dropped too: {ingress.message}"
    if egress.audit is None and ingress.audit is None:
        return f"{subject}: allowed: egress, {egress.message}; ingress, {ingress.message}"
    rules = [verdict.message for verdict in (egress, ingress) if verdict.rule is not None]
    return "; ".join([f"{subject}: {' and '.join(rules) or 'allowed'}", *_audited(egress), *_audited(ingress)])


def one_audited(protocol: str, verdict: PolicyVerdict, direction: str) -> str:
    """Source, destination and port, and why policies in audit would drop one direction; empty: they would not."""
    audited = next(_audited(verdict.egress if direction == verdict.egress.direction else verdict.ingress), "")
    return audited and f"{_subject(protocol, verdict.port, verdict.egress, verdict.ingress)}: {audited}"


def _subject(protocol: str, port: int, egress: DirectionVerdict, ingress: DirectionVerdict) -> str:
    number = f" {port}" if port else ""
    return f"{egress.subject} -> {ingress.subject} {protocol}{number}"


def _audited(verdict: DirectionVerdict) -> Iterator[str]:
    if verdict.audit is not None:
        yield f"in audit, {', '.join(verdict.audited_by)} would drop it: {verdict.audit.message}"


def at_length(verdict: PolicyVerdict) -> Iterator[str]:
    """The lines of the whole verdict on one connection."""
    return _verdict_lines((verdict,), alone=True)


def outcome(answer: Answer) -> Iterator[str]:
    """The line ``outcome``, when policies drop a packet or no Service decides; otherwise nothing."""
    dropped = [verdict for verdict in answer.policies if verdict.outcome == "dropped"]
    if not dropped:
        if answer.policies and answer.outcome == "untouched":
            yield _line("outcome", _let_through(answer.policies[0]))
        return
    reasons = dict.fromkeys(_reason(verdict, alone=len(answer.policies) == 1) for verdict in dropped)
    if len(dropped) == len(answer.policies):
        yield _line("outcome", f"DROPPED {next(iter(reasons))}")
    else:
        share = sum(verdict.probability for verdict in dropped)
        ends = f"{len(dropped)} of {len(answer.policies)} endpoints"
        yield _line("outcome", f"DROPPED in {percent(share)} of connections, for {ends}, {next(iter(reasons))}")
    yield from (_line("", f"or {reason}") for reason in list(reasons)[1:])


def _let_through(verdict: PolicyVerdict) -> str:
    rules = [direction.message for direction in (verdict.egress, verdict.ingress) if direction.rule is not None]
    return f"let through: {' and '.join(rules) or 'no policy applies'}"


def _reason(verdict: PolicyVerdict, *, alone: bool) -> str:
    """Why an end is dropped, without naming both ends; with ``alone`` also the node that drops."""
    denying = [direction for direction in (verdict.egress, verdict.ingress) if not direction.allowed]
    if denying and not any(node.drifted for node in verdict.nodes):
        return "; and ".join(_denial(direction, alone=alone) for direction in denying)
    return f"by the rules of its nodes: {verdict.message}"


def _denial(direction: DirectionVerdict, *, alone: bool) -> str:
    where = f" on {direction.node}" if alone and direction.node else ""
    return f"at {direction.direction.lower()}{where}: {direction.message}"


def policies(answer: Answer) -> Iterator[str]:
    """The verdicts on all ends; ends with equal verdicts share their lines."""
    for group in _groups(answer):
        yield ""
        yield from _verdict_lines(group, alone=len(answer.policies) == 1)


def _groups(answer: Answer) -> tuple[Sequence[PolicyVerdict], ...]:
    """The ends, grouped by equal verdicts."""
    groups: dict[tuple[object, ...], list[PolicyVerdict]] = {}
    for verdict in answer.policies:
        drifted = any(node.drifted for node in verdict.nodes)
        key = (_essence(verdict.egress), _essence(verdict.ingress), verdict.outcome, drifted)
        groups.setdefault(key, []).append(verdict)
    return tuple(groups.values())


def _essence(verdict: DirectionVerdict) -> tuple[object, ...]:
    """The verdict of a direction without the names of the ends."""
    rule = verdict.rule and (verdict.rule.policy, verdict.rule.field)
    nearest = tuple((near.rule.policy, near.rule.field, near.misses) for near in verdict.nearest)
    return verdict.allowed, verdict.reason, rule, verdict.isolated_by, nearest, verdict.audited_by


def _verdict_lines(group: Sequence[PolicyVerdict], *, alone: bool) -> Iterator[str]:
    first = group[0]
    verb = "DROPPED" if first.outcome == "dropped" else "allowed"
    if alone:
        yield _line("policies", verb)
    else:
        named = ", ".join(verdict.pod or verdict.address for verdict in group[:_NAMED]) + (
            ", ..." if len(group) > _NAMED else ""
        )
        yield _line("policies", f"{verb}: {named}")
    for verdict in (first.egress, first.ingress):
        yield from _direction_lines(verdict)
    nodes = {(node.node, node.outcome): node for verdict in group for node in verdict.nodes}
    for node in nodes.values():
        yield from _node_lines(node)


def _direction_lines(verdict: DirectionVerdict) -> Iterator[str]:
    where = f" on {verdict.node}" if verdict.node and verdict.subject != f"node {verdict.node}" else ""
    yield _line(
        verdict.direction.lower(),
        f"of {verdict.subject}{where}: {'' if verdict.allowed else 'DROPPED, '}{_cause(verdict)}",
    )
    for rule in verdict.passed:
        yield _line("", f"passed on by cluster policy {rule}, tier {rule.tier}")
        yield from _terms(rule)
    if verdict.rule is not None:
        yield from _terms(verdict.rule)
        yield from _yaml(verdict.rule)
    yield from _nearest(verdict)
    if verdict.audit is not None:
        yield _line("audit", f"{', '.join(verdict.audited_by)} would drop it: {_cause(verdict.audit)}")
        yield from _nearest(verdict.audit)


def _cause(verdict: DirectionVerdict) -> str:
    """The reason without the nearest rule, which has separate lines."""
    if not verdict.nearest:
        return verdict.message
    listed = ", ".join(map(str, verdict.isolated_by[:_ISOLATING]))
    more = len(verdict.isolated_by) - _ISOLATING
    return f"isolated by {listed}" + (f" and {more} more" if more > 0 else "")


def _nearest(verdict: DirectionVerdict) -> Iterator[str]:
    """The nearest rules; only the nearest of all as YAML and with the parts that match."""
    for number, near in enumerate(verdict.nearest):
        yield _line("nearest" if not number else "or", f"{near.rule}")
        yield from (_line("", f"{_with_line(miss)}: {miss.found}") for miss in near.misses)
        if not number:
            yield from _terms(near.rule)
            yield from _yaml(near.rule)


def _with_line(term: RuleTerm) -> str:
    return f"{term.text} ({term.line or term.field})"


def _terms(rule: RuleMatch) -> Iterator[str]:
    for title, term in (("peer", rule.peer), ("port", rule.port)):
        if term is not None:
            yield _line("", f"{title} {_with_line(term)} matches")


def _yaml(rule: RuleMatch) -> Iterator[str]:
    """The rule as YAML, when its file is unknown."""
    if not rule.line:
        yield from (_line("", f"  {text}") for text in rule.text.splitlines())


def _node_lines(enforcement: NodeEnforcement) -> Iterator[str]:
    rules = (
        f"the {enforcement.mode} rules in its kernel"
        if enforcement.state == "held"
        else f"the {enforcement.mode} rules it should have"
    )
    verb = "DROPPED" if enforcement.outcome == "dropped" else "allowed"
    yield _line("enforced", f"{verb} on {enforcement.node}, by {rules}")
    if enforcement.drift or enforcement.drifted:
        yield _line("", "Drift: the kernel differs from the plan (+ is missing, - is extra)")
        yield from (_line("", f"  {drift.sign} {drift.where}: {drift.text}") for drift in enforcement.drift)


def rules(answer: Answer) -> Iterator[str]:
    """The policy rules that matched; of ends with equal verdicts, only the rules for the first."""
    for first, *rest_of_group in _groups(answer):
        rest = f" (and {len(rest_of_group)} more in the same way)" if rest_of_group else ""
        for node in first.nodes:
            if node.steps:
                yield ""
                yield f"policy rules on {node.node} for {first.pod or first.address}{rest}"
                yield from _steps(node)


def _steps(enforcement: NodeEnforcement) -> Iterator[str]:
    header = ""
    for step in enforcement.steps:
        if step.where != header:
            header = step.where
            yield f"  {header}" + (f"  # {step.object}" if step.object else "")
        yield f"      {step.rule}"
        yield from (f"        {element}" for element in step.elements)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}".rstrip()
