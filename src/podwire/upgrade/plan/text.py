"""A plan as text for a terminal and as Markdown. Pure."""

from collections.abc import Iterable, Iterator

from podwire.upgrade.plan.values import SEVERITIES, Component, UpgradeFinding, UpgradePlan, UpgradeStep

_SHOWN_NODES = 4


def plan_text(plan: UpgradePlan) -> str:
    """The plan as lines of text."""
    return "\n".join(_text_lines(plan)) + "\n"


def findings_text(findings: Iterable[UpgradeFinding]) -> str:
    """Findings as lines of text, each with its remedy on a line of its own."""
    return "".join(f"{line}\n" for finding in findings for line in _finding_lines(finding))


def duration_text(seconds: int) -> str:
    """As ``45 s``, ``12 min``, ``1 h 5 min``."""
    if seconds < 120:
        return f"{seconds} s"
    minutes = (seconds + 30) // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def summary(plan: UpgradePlan) -> str:
    """One line: what is in the way, how many steps there are and how long they may take."""
    counts = {severity: sum(f.severity == severity for f in plan.findings) for severity in SEVERITIES}
    total = duration_text(sum(step.seconds for step in plan.steps))
    numbers = f"{_plural(counts['blocker'], 'blocker')}, {_plural(counts['warning'], 'warning')}"
    return f"{_plural(len(plan.steps), 'step')}, about {total}; {numbers}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text_lines(plan: UpgradePlan) -> Iterator[str]:
    yield f"Plan {plan.id}: Kubernetes {plan.from_version} to {plan.to_version}"
    yield f"Cluster {plan.cluster or '(unknown)'}, layout {plan.layout}, {_plural(plan.nodes, 'node')}"
    yield summary(plan)
    yield ""
    yield "Components"
    rows = [_component_row(component) for component in plan.components]
    yield from (f"  {line}" for line in _table(rows))
    if not rows:
        yield "  none"
    yield ""
    yield "Findings"
    for finding in plan.findings:
        yield from (f"  {line}" for line in _finding_lines(finding))
    if not plan.findings:
        yield "  none"
    yield ""
    yield "Steps"
    for step in plan.steps:
        yield from (f"  {line}" for line in _step_lines(step))
    if not plan.steps:
        yield "  none: everything has its target version"


def _component_row(component: Component) -> tuple[str, ...]:
    owner = "" if component.owner == "cluster" else f"of the {component.owner}"
    return component.name, component.version or "?", component.title, f"{component.ready}/{component.replicas}", owner


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _finding_lines(finding: UpgradeFinding) -> Iterator[str]:
    where = f"{finding.object}: {finding.field}" if finding.field else finding.object
    yield f"{finding.severity}: {where}: {finding.message}"
    if finding.remedy:
        yield f"    {finding.remedy}"


def _step_lines(step: UpgradeStep) -> Iterator[str]:
    how = "by hand" if step.action == "manual" else "rolling update"
    how = _plural(len(step.waves), "wave") if step.waves else how
    yield f"{step.id}: {how}" + (f", about {duration_text(step.seconds)}" if step.seconds else "")
    for image in step.images:
        yield f"    {image.container}: {image.before} -> {image.after}"
    if step.command:
        yield f"    {step.command}"
    if step.waves:
        yield f"    {_waves_text(step)}"
    if step.risk:
        yield f"    risk: {step.risk}"
    if step.gates:
        yield f"    gates: {', '.join(step.gates)}"
    for change in step.changes:
        if change.diff:
            yield f"    changes {change.title}:"
            yield from (f"      {line}" for line in change.diff.splitlines())


def _waves_text(step: UpgradeStep) -> str:
    canary, rest = step.waves[0], step.waves[1:]
    sizes = [len(wave.nodes) for wave in rest]
    text = f"canary {', '.join(canary.nodes)}"
    if not sizes:
        return text
    largest = max(sizes)
    first = ", ".join(rest[0].nodes[:_SHOWN_NODES]) + (", ..." if len(rest[0].nodes) > _SHOWN_NODES else "")
    return f"{text}; then {_plural(len(rest), 'wave')} of at most {_plural(largest, 'node')}, first {first}"


def plan_markdown(plan: UpgradePlan) -> str:
    """The plan as a Markdown document."""
    return "\n".join(_markdown_lines(plan)) + "\n"


def _markdown_lines(plan: UpgradePlan) -> Iterator[str]:
    yield f"# Upgrade of the network: Kubernetes {plan.from_version} to {plan.to_version}"
    yield ""
    yield f"Plan `{plan.id}`, cluster `{plan.cluster or 'unknown'}`, layout {plan.layout}."
    yield f"{_plural(plan.nodes, 'node')}, {summary(plan)}."
    yield ""
    yield "## Components"
    yield ""
    rows: list[tuple[str, ...]] = [("component", "version", "object", "ready", "upgraded by")]
    for component in plan.components:
        name, version, title, ready, _ = _component_row(component)
        rows.append((name, version, title, ready, component.owner))
    yield from _markdown_table(rows)
    yield ""
    yield "## Findings"
    yield ""
    findings: list[tuple[str, ...]] = [("severity", "object", "finding", "what to do")]
    for finding in plan.findings:
        where = f"{finding.object}: {finding.field}" if finding.field else finding.object
        findings.append((finding.severity, where, finding.message, finding.remedy))
    yield from _markdown_table(findings)
    yield ""
    yield "## Steps"
    for step in plan.steps:
        yield ""
        yield from _markdown_step(step)
    if not plan.steps:
        yield ""
        yield "Everything has its target version."


def _markdown_step(step: UpgradeStep) -> Iterator[str]:
    yield f"### {step.id}"
    yield ""
    for image in step.images:
        yield f"- `{image.container}`: `{image.before}` → `{image.after}`"
    if step.command:
        yield f"- by hand: `{step.command}`"
    if step.waves:
        yield f"- {_plural(len(step.waves), 'wave')}: {_waves_text(step)}"
    if step.seconds:
        yield f"- about {duration_text(step.seconds)}"
    if step.risk:
        yield f"- risk: {step.risk}"
    if step.gates:
        yield f"- gates: {', '.join(step.gates)}"
    for change in step.changes:
        if change.diff:
            yield ""
            yield f"Changes of {change.title}:"
            yield ""
            yield "```diff"
            yield change.diff.rstrip("\n")
            yield "```"


def _markdown_table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    if len(rows) == 1:
        yield "None."
        return
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
        if number == 0:
            yield "|" + "---|" * len(row)
