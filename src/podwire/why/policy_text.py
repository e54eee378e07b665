"""What policies say of a connection, as text: in one line, for logs and lists, and at length (pure)."""

from collections.abc import Iterator, Sequence

from podwire.why.answer import Answer, DirectionVerdict, NodeEnforcement, PolicyVerdict, RuleMatch, RuleTerm

_LABEL = 10
_NAMED, _ISOLATING = 3, 8
"""Of more ends, and of more policies that isolate, the first ones are named."""


def one_line(protocol: str, port: int, egress: DirectionVerdict, ingress: DirectionVerdict) -> str:
    """Source, destination and port, and the verdicts of both directions."""
    subject = _subject(protocol, port, egress, ingress)
    denied = [each for each in (egress, ingress) if not each.allowed]
    if denied:
        first = f"{subject}: dropped at {denied[0].direction.lower()}: {denied[0].message}"
        return first if len(denied) == 1 else f"{first}; at ingress it would be dropped too: {ingress.message}"
    if egress.audit is None and ingress.audit is None:
        return f"{subject}: allowed: egress, {egress.message}; ingress, {ingress.message}"
    rules = [each.message for each in (egress, ingress) if each.rule is not None]
    return "; ".join([f"{subject}: {' and '.join(rules) or 'allowed'}", *_audited(egress), *_audited(ingress)])


def one_audited(protocol: str, said: PolicyVerdict, direction: str) -> str:
    """Source, destination and port, and why policies in audit would drop one direction; empty: they would not."""
    audited = next(_audited(said.egress if direction == said.egress.direction else said.ingress), "")
    return audited and f"{_subject(protocol, said.port, said.egress, said.ingress)}: {audited}"


def _subject(protocol: str, port: int, egress: DirectionVerdict, ingress: DirectionVerdict) -> str:
    number = f" {port}" if port else ""
    return f"{egress.subject} -> {ingress.subject} {protocol}{number}"


def _audited(said: DirectionVerdict) -> Iterator[str]:
    if said.audit is not None:
        yield f"in audit, {', '.join(said.audited_by)} would drop it: {said.audit.message}"


def at_length(said: PolicyVerdict) -> Iterator[str]:
    """The lines of the whole verdict on one connection."""
    return _said((said,), alone=True)


def outcome(answer: Answer) -> Iterator[str]:
    """The line ``outcome``, where policies drop something or no Service decides; otherwise nothing."""
    dropped = [one for one in answer.policies if one.outcome == "dropped"]
    if not dropped:
        if answer.policies and answer.outcome == "untouched":
            yield _line("outcome", _let_through(answer.policies[0]))
        return
    reasons = dict.fromkeys(_reason(one, alone=len(answer.policies) == 1) for one in dropped)
    if len(dropped) == len(answer.policies):
        yield _line("outcome", f"DROPPED {next(iter(reasons))}")
    else:
        share = sum(one.probability for one in dropped)
        ends = f"{len(dropped)} of {len(answer.policies)} endpoints"
        yield _line("outcome", f"DROPPED in {share:.0%} of connections, for {ends}, {next(iter(reasons))}")
    yield from (_line("", f"or {reason}") for reason in list(reasons)[1:])


def _let_through(said: PolicyVerdict) -> str:
    rules = [each.message for each in (said.egress, said.ingress) if each.rule is not None]
    return f"let through: {' and '.join(rules) or 'no policy applies'}"


def _reason(said: PolicyVerdict, *, alone: bool) -> str:
    """Why an end is dropped, without naming both ends; with ``alone`` also the node that drops."""
    if said.outcome == "dropped":
        for each in (said.egress, said.ingress):
            if not each.allowed and not any(node.drifted for node in said.nodes):
                where = f" on {each.node}" if alone and each.node else ""
                return f"at {each.direction.lower()}{where}: {each.message}"
    return f"by the rules of its nodes: {said.message}"


def policies(answer: Answer) -> Iterator[str]:
    """The verdicts on all ends; ends with equal verdicts share their lines."""
    for some in _groups(answer):
        yield ""
        yield from _said(some, alone=len(answer.policies) == 1)


def _groups(answer: Answer) -> tuple[Sequence[PolicyVerdict], ...]:
    """The ends, grouped by equal verdicts."""
    groups: dict[tuple[object, ...], list[PolicyVerdict]] = {}
    for one in answer.policies:
        drifted = any(each.drifted for each in one.nodes)
        key = (_essence(one.egress), _essence(one.ingress), one.outcome, drifted)
        groups.setdefault(key, []).append(one)
    return tuple(groups.values())


def _essence(said: DirectionVerdict) -> tuple[object, ...]:
    """The verdict of a direction without the names of the ends."""
    rule = said.rule and (said.rule.policy, said.rule.field)
    near = said.nearest and (said.nearest.rule.policy, said.nearest.rule.field, said.nearest.misses)
    return said.allowed, said.reason, rule, said.isolated_by, near, said.audited_by


def _said(some: Sequence[PolicyVerdict], *, alone: bool) -> Iterator[str]:
    one = some[0]
    word = "DROPPED" if one.outcome == "dropped" else "allowed"
    if alone:
        yield _line("policies", word)
    else:
        named = ", ".join(each.pod or each.address for each in some[:_NAMED]) + (", ..." if len(some) > _NAMED else "")
        yield _line("policies", f"{word}: {named}")
    for each in (one.egress, one.ingress):
        yield from _direction(each)
    nodes = {(node.node, node.outcome): node for each in some for node in each.nodes}
    for node in nodes.values():
        yield from _node(node)


def _direction(said: DirectionVerdict) -> Iterator[str]:
    where = f" on {said.node}" if said.node and said.subject != f"node {said.node}" else ""
    yield _line(said.direction.lower(), f"of {said.subject}{where}: {'' if said.allowed else 'DROPPED, '}{_by(said)}")
    for rule in said.passed:
        yield _line("", f"passed on by cluster policy {rule}, tier {rule.tier}")
        yield from _terms(rule)
    if said.rule is not None:
        yield from _terms(said.rule)
        yield from _yaml(said.rule)
    yield from _nearest(said)
    if said.audit is not None:
        yield _line("audit", f"{', '.join(said.audited_by)} would drop it: {_by(said.audit)}")
        yield from _nearest(said.audit)


def _by(said: DirectionVerdict) -> str:
    """Why, without the nearest rule, which has lines of its own."""
    if said.nearest is None:
        return said.message
    listed = ", ".join(map(str, said.isolated_by[:_ISOLATING]))
    more = len(said.isolated_by) - _ISOLATING
    return f"isolated by {listed}" + (f" and {more} more" if more > 0 else "")


def _nearest(said: DirectionVerdict) -> Iterator[str]:
    if said.nearest is not None:
        yield _line("nearest", f"{said.nearest.rule}")
        yield from (_line("", f"{_placed(miss)}: {miss.found}") for miss in said.nearest.misses)
        yield from _terms(said.nearest.rule)
        yield from _yaml(said.nearest.rule)


def _placed(term: RuleTerm) -> str:
    return f"{term.text} ({term.line or term.field})"


def _terms(rule: RuleMatch) -> Iterator[str]:
    for word, term in (("peer", rule.peer), ("port", rule.port)):
        if term is not None:
            yield _line("", f"{word} {_placed(term)} matches")


def _yaml(rule: RuleMatch) -> Iterator[str]:
    """The rule as YAML, where its file is not known."""
    if not rule.line:
        yield from (_line("", f"  {text}") for text in rule.text.splitlines())


def _node(said: NodeEnforcement) -> Iterator[str]:
    rules = f"the {said.mode} rules in its kernel" if said.state == "held" else f"the {said.mode} rules it should have"
    word = "DROPPED" if said.outcome == "dropped" else "allowed"
    yield _line("enforced", f"{word} on {said.node}, by {rules}")
    if said.drift or said.drifted:
        yield _line("", "Drift: the kernel differs from the plan (+ is missing, - is extra)")
        yield from (_line("", f"  {one.sign} {one.where}: {one.text}") for one in said.drift)


def rules(answer: Answer) -> Iterator[str]:
    """The policy rules that matched; of ends with equal verdicts, only the rules for the first."""
    for one, *others in _groups(answer):
        rest = f" (and {len(others)} more in the same way)" if others else ""
        for node in one.nodes:
            if node.steps:
                yield ""
                yield f"policy rules on {node.node} for {one.pod or one.address}{rest}"
                yield from _steps(node)


def _steps(said: NodeEnforcement) -> Iterator[str]:
    place = ""
    for step in said.steps:
        if step.where != place:
            place = step.where
            yield f"  {place}" + (f"  # {step.object}" if step.object else "")
        yield f"      {step.rule}"
        yield from (f"        {element}" for element in step.elements)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}".rstrip()
