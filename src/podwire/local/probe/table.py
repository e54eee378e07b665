"""The tables of ``podwire probe``: selects results and fits them into the width of a terminal (pure).

Unexpected results come first. More than :data:`_MANY` results are summed up by workload: one row for each pair of
source and target workload and port, and separate rows only for unexpected results. A table that is wider than the
terminal loses its least important columns, then the ends of its lines.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from podwire.local.probe.result import ProbeResult, summary
from podwire.model.wording import columns

_DROPPED = ": dropped at "
"""The separator between a connection and the reason for its denial, in a line of an explanation."""
_MANY = 100
_ROWS = 50
"""The most rows of one table when results are summed up."""
_HEAD = ("FROM", "TO", "PORT", "REACHED", "ANSWERED BY", "SOURCE SEEN", "MS", "")
_LESS_IMPORTANT = ("SOURCE SEEN", "ANSWERED BY", "MS")
_SUMS_HEAD = ("FROM", "TO", "PORT", "TRIED", "REACHED", "DENIED", "UNEXPECTED")

CHOICES: Mapping[str, str] = {
    "all": "every result",
    "unexpected": "what is not as expected",
    "reached": "what was reached",
    "failed": "what was not reached",
    "denied": "what policies deny",
    "sums": "sums by workload",
}
"""The words of ``--show``, and their meanings."""
_CHOSEN: Mapping[str, Callable[[ProbeResult], bool]] = {
    "unexpected": lambda result: result.surprising,
    "reached": lambda result: result.reached,
    "failed": lambda result: not result.reached,
    "denied": lambda result: result.denied,
}


def choose(results: Sequence[ProbeResult], show: str) -> tuple[ProbeResult, ...]:
    """The results that a word of :data:`CHOICES` selects; all for other words."""
    chosen = _CHOSEN.get(show)
    return tuple(result for result in results if chosen is None or chosen(result))


def render(results: Sequence[ProbeResult], show: str = "", width: int = 0, routes: str = "") -> str:
    """The text for a person: rows or sums, the routes between nodes, then one line for all results.

    ``show`` is a word of :data:`CHOICES`, or empty for all, summed up when they are many. ``width`` is that of the
    terminal, 0 for no limit.
    """
    sums = show == "sums" or (not show and len(results) > _MANY)
    sections = [_summed_up(results, width)] if sums else [as_table(choose(results, show), width)]
    return "\n\n".join([*filter(None, (*sections, routes)), summary(results)])


def as_table(results: Sequence[ProbeResult], width: int = 0) -> str:
    """A table with one row for each attempt, unexpected results first; empty without results."""
    first = sorted(results, key=lambda result: not result.surprising)
    return fit([_HEAD, *map(_row, first)], width) if results else ""


def _row(r: ProbeResult) -> tuple[str, ...]:
    return (
        r.attempt.source.name,
        r.attempt.target,
        str(r.attempt.port),
        "yes" if r.reached else f"no ({r.error})" if r.error else "no",
        r.answered_by or "-",
        r.source_seen or "-",
        f"{r.ms:.1f}",
        _surprise(r),
    )


class _Sum(msgspec.Struct):
    """The results between two workloads at one port."""

    tried: int = 0
    reached: int = 0
    denied: int = 0
    unexpected: int = 0

    def add(self, result: ProbeResult) -> None:
        self.tried += 1
        self.reached += result.reached
        self.denied += result.denied
        self.unexpected += result.surprising


def _summed_up(results: Sequence[ProbeResult], width: int) -> str:
    sums: dict[tuple[str, str, str], _Sum] = {}
    for result in results:
        attempt = result.attempt
        ends = (attempt.source.workload or attempt.source.name, attempt.workload or attempt.target, str(attempt.port))
        sums.setdefault(ends, _Sum()).add(result)
    order = sorted(sums.items(), key=lambda item: -item[1].unexpected)
    rows = [
        (*ends, str(result.tried), str(result.reached), str(result.denied or "-"), str(result.unexpected or "-"))
        for ends, result in order[:_ROWS]
    ]
    sections = []
    surprises = [result for result in results if result.surprising]
    if surprises:
        sections.append("Not as expected:\n" + as_table(surprises[:_ROWS], width) + _more(len(surprises)))
    sections.append(fit([_SUMS_HEAD, *rows], width) + _more(len(order)))
    return "\n\n".join(sections)


def _more(number: int) -> str:
    return f"\n... and {number - _ROWS} more; --show all has every result" if number > _ROWS else ""


def fit(rows: Sequence[Sequence[str]], width: int) -> str:
    """Aligned columns, the first row being the head, in at most ``width`` characters a line; 0 is no limit."""
    text = columns(rows)
    for name in _LESS_IMPORTANT:
        if not _too_wide(text, width) or name not in rows[0]:
            break
        at = rows[0].index(name)
        rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        text = columns(rows)
    if not _too_wide(text, width):
        return text
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in text.splitlines())


def _too_wide(text: str, width: int) -> bool:
    return width > 0 and max(map(len, text.splitlines()), default=0) > width


def _surprise(result: ProbeResult) -> str:
    attempt = result.attempt
    if attempt.either:
        return f"depends on the endpoint: {attempt.because}"
    if not result.surprising:
        return _short(attempt.because)
    if attempt.expected:
        return "<- expected to be reached"
    return "<- not expected to be reached" + (f": {_short(attempt.because)}" if attempt.because else "")


def _short(because: str) -> str:
    """The reason without the connection's ends, which the row shows, and without the nearest matching rule."""
    ends, dropped, reason = because.partition(_DROPPED)
    if not dropped:
        return because
    where = f"{ends.partition(': ')[0]}: " if ": " in ends else ""
    return f"{where}dropped at {reason.partition('; ')[0]}"
