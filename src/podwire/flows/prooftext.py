"""A loss proof as text and as Markdown. Pure."""

from collections.abc import Callable, Sequence

from podwire.flows.count import DENIED
from podwire.flows.proof import (
    BEFORE_S,
    Explanation,
    LossProof,
    ObjectDiff,
    StepMark,
    clock_time,
    counts,
    explain,
    totals,
)
from podwire.model.wording import columns, count, duration

_MOST_LOSSES = 50
_MOST_CHANGES = 8
_HEAD = ("PATH", "KIND", "FLOWS", "SENT", "LOST", "ENDED", "LONGEST GAP")
Table = Callable[[Sequence[Sequence[str]]], str]


def text(proof: LossProof) -> str:
    """The report for a terminal."""
    sections = [_summary(proof), columns([tuple(row) for row in _rows(proof)])]
    sections.append(columns([tuple(row) for row in _step_rows(proof)]))
    losses = explain(proof)
    if losses:
        sections.append("\n".join(line for item in losses[:_MOST_LOSSES] for line in _loss_lines(item)))
    sections += [f"{_object_title(item)}:\n{_indented(item.text)}" for item in proof.objects]
    return "\n\n".join(sections) + "\n"


def markdown(proof: LossProof, picture: str = "") -> str:
    """The report as a page; ``picture`` is the path of the timeline, empty without one."""
    first, *more = _summary(proof).split("\n")
    window = first.removeprefix(f"{proof.title}: ")
    sections = [f"# {proof.title}", f"{window[:1].upper()}{window[1:]}.", "\n".join(f"**{line}**  " for line in more)]
    if picture:
        sections.append(f"![Timeline of steps, flows and changes of kernels]({picture})")
    sections += ["## Flows", _markdown_table(_rows(proof)), "## Steps", _markdown_table(_step_rows(proof))]
    losses = explain(proof)
    sections.append("## Losses")
    sections.append("\n".join(_bullets(losses)) if losses else "No message was lost, and no denied message arrived.")
    if proof.objects:
        sections.append("## Objects")
        sections += [f"{_object_title(item)}:\n\n```diff\n{item.text.rstrip()}\n```" for item in proof.objects]
    return "\n\n".join(sections) + "\n"


def _object_title(item: ObjectDiff) -> str:
    return f"{item.step} changes {item.object}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.rstrip().splitlines())


def _bullets(losses: Sequence[Explanation]) -> list[str]:
    return [
        ("- " if number == 0 else "  - ") + line.strip()
        for item in losses[:_MOST_LOSSES]
        for number, line in enumerate(_loss_lines(item))
    ]


def _summary(proof: LossProof) -> str:
    lost, sent, leaked, denied = counts(proof)
    window = f"{clock_time(proof.began, date=True)} UTC, {proof.ended - proof.began:.0f} s"
    lines = [f"{proof.title}: {count(proof.nodes, 'node')}, {window}", f"{lost:,} of {sent:,} messages lost"]
    if denied:
        lines.append(f"{leaked:,} of {denied:,} denied messages leaked")
    return "\n".join(lines)


def _rows(proof: LossProof) -> list[list[str]]:
    rows = [list(_HEAD)]
    for item in totals(proof.flows):
        lost = f"{item.leaked:,} leaked" if item.kind in DENIED else f"{item.lost:,}"
        ended = str(item.broken) if item.kind == "tcp" else "-"
        gap = "-" if item.kind in DENIED else duration(item.gap_ms)
        rows.append([item.path, item.kind, str(item.flows), f"{item.sent:,}", lost, ended, gap])
    return rows


def _step_rows(proof: LossProof) -> list[list[str]]:
    rows = [["STEP", "BEGAN", "SECONDS", "KERNEL CHANGES"]]
    for step in proof.steps:
        until = step.until or proof.ended
        changes = sum(item.number for item in proof.changes if step.at <= item.at <= until)
        rows.append([_title(step), clock_time(step.at), f"{until - step.at:.1f}", f"{changes:,}"])
    return rows


def _title(step: StepMark) -> str:
    return f"{step.title} on {step.node}" if step.node else step.title


def _loss_lines(item: Explanation) -> list[str]:
    flow, span = item.flow, item.span
    until = f" to {clock_time(span.last)}" if span.number > 1 else ""
    subject = f"{count(span.number, 'message')} of {flow.kind} from {flow.source} to {flow.target} ({flow.path})"
    lines = [f"{clock_time(span.first)}{until}: {subject}: {span.reason}"]
    lines += [f"  during: {_title(step)}" for step in item.steps]
    for change in item.changes[:_MOST_CHANGES]:
        program = f" by {change.process}" if change.process else ""
        lines.append(f"  {clock_time(change.at)} {change.node}: {change.text}{program}")
    if len(item.changes) > _MOST_CHANGES:
        lines.append(f"  and {len(item.changes) - _MOST_CHANGES} further changes of kernels")
    if not item.changes:
        lines.append(f"  no kernel changed from {BEFORE_S:g} s before")
    return lines


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [f"| {' | '.join(head).lower()} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in body)])
