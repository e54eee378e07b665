"""The timeline of a loss proof as an SVG: steps, flows with their losses, and changes of each kernel. Pure.

Time runs from left to right. Each step is a bar, each path and kind of flow a line with a red mark where messages were
lost or leaked, each node a row of ticks, one for each moment at which its kernel changed: the more objects, the taller.
"""

import math
from collections.abc import Iterable
from html import escape

import msgspec

from podwire.flows.changes import KernelChange
from podwire.flows.count import DENIED, LossSpan
from podwire.flows.proof import LossProof, clock_time, counts, path_of, totals
from podwire.model.wording import count

_WIDTH = 1180
_NAMES = 250
_NUMBERS = 180
_ROW = 18
_GAP = 14
_TOP = 66
_TICKS = 8
_LEAST_MARK = 3.0
_FONT = "font-family='DejaVu Sans, Arial, sans-serif'"
_GREEN, _RED, _BLUE, _GREY = "#2e8b57", "#d0021b", "#4a78b5", "#667085"
SUBJECTS = {
    "nftables": "#8e5bb5", "route": "#1f8a8a", "link": "#c77700", "address": "#a0522d",
    "neighbour": "#5f7f2f", "rule": "#b03a6f", "sysctl": "#777777", "lost": _RED,
}  # fmt: skip
"""The colour of the ticks of each kind of change."""


class _Frame(msgspec.Struct, frozen=True):
    """The part of the picture in which time runs."""

    began: float
    ended: float

    @property
    def width(self) -> int:
        return _WIDTH - _NAMES - _NUMBERS

    def x(self, at: float) -> float:
        """The place of a time, inside of the frame."""
        share = (at - self.began) / max(self.ended - self.began, 0.001)
        return _NAMES + self.width * min(1.0, max(0.0, share))


def svg(proof: LossProof) -> str:
    """The picture as a document."""
    frame = _Frame(proof.began, proof.ended)
    body: list[str] = []
    y = _TOP
    for rows in (_steps(proof, frame), _flows(proof, frame), _kernels(proof, frame)):
        for name, marks, number in rows:
            body.append(_text(_NAMES - 10, y + 13, name, anchor="end"))
            body += [mark.replace("{y}", str(y)) for mark in marks]
            body.append(_text(_WIDTH - _NUMBERS + 10, y + 13, number, colour=_GREY))
            y += _ROW
        y += _GAP if rows else 0
    height = y + 30
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'>",
        f"<title>{escape(proof.title)}</title>",
        f"<rect width='{_WIDTH}' height='{height}' fill='#ffffff'/>",
        *_head(proof),
        *_axis(frame, y),
        *body,
        *_legend(proof.changes, y + 14),
        "</svg>\n",
    ])  # fmt: skip


def _head(proof: LossProof) -> list[str]:
    lost, sent, leaked, denied = counts(proof)
    result = f"{lost:,} of {sent:,} messages lost"
    result += f", {leaked:,} of {denied:,} denied messages leaked" if denied else ""
    window = (
        f"{count(proof.nodes, 'node')}, {clock_time(proof.began, date=True)} UTC, {proof.ended - proof.began:.0f} s"
    )
    colour = _RED if lost or leaked else _GREEN
    return [
        _text(16, 22, f"{proof.title} ({window})", size=15, weight="bold"),
        _text(16, 42, result, size=14, weight="bold", colour=colour),
    ]


def _axis(frame: _Frame, bottom: int) -> list[str]:
    span = frame.ended - frame.began
    step = _round_step(span / _TICKS)
    lines = []
    for number in range(int(span / step) + 1):
        x = frame.x(frame.began + number * step)
        lines.append(f"<line x1='{x:.1f}' y1='{_TOP - 4}' x2='{x:.1f}' y2='{bottom - _GAP}' stroke='#e4e7ec'/>")
        lines.append(_text(x, _TOP - 8, f"{number * step:g} s", size=10, anchor="middle", colour=_GREY))
    return lines


def _round_step(seconds: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ... seconds; at least a tenth."""
    seconds = max(seconds, 0.1)
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= seconds * 0.999)


_Row = tuple[str, list[str], str]


def _steps(proof: LossProof, frame: _Frame) -> list[_Row]:
    rows: list[_Row] = []
    for step in proof.steps:
        until = step.until or proof.ended
        x, width = frame.x(step.at), max(_LEAST_MARK, frame.x(until) - frame.x(step.at))
        name = f"{step.title} on {step.node}" if step.node else step.title
        bar = f"<rect x='{x:.1f}' y='{{y}}' width='{width:.1f}' height='13' rx='2' fill='{_BLUE}'/>"
        rows.append((name, [bar], f"{until - step.at:.1f} s"))
    return rows


def _flows(proof: LossProof, frame: _Frame) -> list[_Row]:
    rows: list[_Row] = []
    for total in totals(proof.flows):
        members = [flow for flow in proof.flows if flow.kind == total.kind and path_of(flow) == total.path]
        spans = [span for flow in members for span in flow.losses]
        denied = total.kind in DENIED
        line = (
            f"<rect x='{_NAMES}' y='{{y}}' width='{frame.width}' height='4' transform='translate(0 6)' "
            f"fill='{_GREY if denied else _GREEN}' opacity='0.55'/>"
        )
        lost, word = (total.leaked, "leaked") if denied else (total.lost, "lost")
        name = f"{total.kind}, {count(total.flows, 'flow')}" if denied else f"{total.path}: {total.kind}"
        rows.append((name, [line, *_losses(spans, frame)], f"{lost:,} of {total.sent:,} {word}"))
    return rows


def _losses(spans: Iterable[LossSpan], frame: _Frame) -> list[str]:
    marks = []
    for span in spans:
        x = frame.x(span.first)
        width = max(_LEAST_MARK, frame.x(span.last) - x)
        title = escape(f"{clock_time(span.first)}: {span.number} {span.reason}")
        marks.append(
            f"<rect x='{x:.1f}' y='{{y}}' width='{width:.1f}' height='15' fill='{_RED}'><title>{title}</title></rect>"
        )
    return marks


def _kernels(proof: LossProof, frame: _Frame) -> list[_Row]:
    nodes = sorted({change.node for change in proof.changes}, key=lambda name: (len(name), name))
    rows: list[_Row] = []
    for node in nodes:
        changes = [item for item in proof.changes if item.node == node and item.subject in SUBJECTS]
        ticks = _kernel_ticks([item for item in changes if frame.began <= item.at <= frame.ended], frame)
        total = sum(item.number for item in changes)
        rows.append((f"kernel of {node}", ticks, f"{total:,} {'change' if total == 1 else 'changes'}"))
    return rows


def _kernel_ticks(changes: Iterable[KernelChange], frame: _Frame) -> list[str]:
    """One tick for each place and kind, so that the picture does not grow with the number of changes."""
    numbers: dict[tuple[int, str], int] = {}
    for change in changes:
        place = (round(frame.x(change.at) * 2), change.subject)
        numbers[place] = numbers.get(place, 0) + change.number
    return [
        f"<line x1='{x / 2:.1f}' x2='{x / 2:.1f}' y1='0' y2='{min(15.0, 3 + 3 * math.log2(number)):.1f}' "
        f"transform='translate(0 {{y}})' stroke='{SUBJECTS[subject]}'/>"
        for (x, subject), number in sorted(numbers.items())
    ]


def _legend(changes: Iterable[KernelChange], y: int) -> list[str]:
    present = {change.subject for change in changes}
    marks, x = [], _NAMES
    for subject, colour in SUBJECTS.items():
        if subject in present:
            marks.append(f"<rect x='{x}' y='{y - 9}' width='10' height='10' fill='{colour}'/>")
            marks.append(_text(x + 14, y, subject, size=11, colour=_GREY))
            x += 26 + 7 * len(subject)
    return marks


def _text(x: float, y: float, text: str, **style: object) -> str:
    size, weight = style.get("size", 12), style.get("weight", "normal")
    colour, anchor = style.get("colour", "#1d2939"), style.get("anchor", "start")
    return (
        f"<text x='{x:.1f}' y='{y}' {_FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(text)}</text>"
    )
