"""Rows of measurements, the tables made of them, and the page of all tables. Pure.

A row holds every run, so that the page can show median and spread; what stands beside it was measured in the same
run. Whether more or less is better follows from the unit: rates end in ``/s``, everything else is a cost. A ratio
says how many times better podwire is than what stands beside it, so below 1 the other one wins.

The page keeps the sections of benchmarks that were not run again; a section starts with ``## name``.
"""

from dataclasses import dataclass
from statistics import median

_SECTION = "\n## "


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing."""

    what: str
    unit: str
    """``s``, ``ms``, ``us``, ``MB``, ``%``, ``/s``, or empty for a count."""
    values: tuple[float, ...]
    """A value a run, or a process."""
    peers: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """What was measured beside it: name and values, in the same unit."""
    aim: float | None = None
    """The most a cost may be, the least a rate may be; None when there is no aim."""

    @property
    def more_is_better(self) -> bool:
        """Whether this is a rate."""
        return self.unit.endswith("/s")

    @property
    def met(self) -> bool:
        """Whether the median meets the aim; true without an aim."""
        if self.aim is None:
            return True
        middle = median(self.values)
        return middle >= self.aim if self.more_is_better else middle <= self.aim

    def ratio(self, peer: str) -> float | None:
        """How many times better this is than ``peer``; None when the peer was not measured or a median is 0."""
        peer_values = dict(self.peers).get(peer)
        if not peer_values:
            return None
        own, beside = median(self.values), median(peer_values)
        better, worse = (own, beside) if self.more_is_better else (beside, own)
        return better / worse if worse else None


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark's part of the page."""

    name: str
    about: str
    """What was done, as text."""
    command: str
    load: float
    """The load average of the machine in the minute before."""
    rows: tuple[Row, ...]


def number(value: float) -> str:
    """A number with three significant digits; all digits before the point are kept."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def quantity(value: float, unit: str) -> str:
    """A number with its unit."""
    return f"{number(value)}{unit}" if unit in ("/s", "%", "") else f"{number(value)} {unit}"


def table(rows: tuple[Row, ...]) -> str:
    """The rows as a Markdown table, with two columns for each peer, and one for aims if there are any."""
    peers = list(dict.fromkeys(name for row in rows for name, _ in row.peers))
    aims = any(row.aim is not None for row in rows)
    head = ["measured", "median", "spread"]
    for peer in peers:
        head += [peer, "ratio"]
    lines = [[*head, "aim"] if aims else head]
    lines += [_cells(row, peers, aims=aims) for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row, peers: list[str], *, aims: bool) -> list[str]:
    low, high, runs = min(row.values), max(row.values), len(row.values)
    cells = [row.what, quantity(median(row.values), row.unit)]
    cells.append(f"{number(low)} to {number(high)}, {runs}" if runs > 1 else "1 run")
    for peer in peers:
        beside = dict(row.peers).get(peer)
        ratio = row.ratio(peer)
        cells.append(quantity(median(beside), row.unit) if beside else "-")
        cells.append(f"{number(ratio)}" if ratio is not None else "-")
    return [*cells, _aim(row)] if aims else cells


def _aim(row: Row) -> str:
    if row.aim is None:
        return "-"
    bound = "at least" if row.more_is_better else "at most"
    return f"{bound} {quantity(row.aim, row.unit)}: {'met' if row.met else 'missed'}"


def render(section: Section) -> str:
    """A section of the page."""
    return (
        f"## {section.name}\n\n{section.about}\n\nCommand: `{section.command}`. "
        f"Load of the machine before: {section.load:.1f}.\n\n{table(section.rows)}\n"
    )


def page(introduction: str, sections: tuple[Section, ...], before: str, order: tuple[str, ...]) -> str:
    """The whole page: the given sections, and of ``before`` those of ``order`` that are not given."""
    texts = dict(_split(before)) | {section.name: render(section) for section in sections}
    return "\n".join([introduction, *(texts[name] for name in order if name in texts)])


def _split(text: str) -> list[tuple[str, str]]:
    sections = ("\n" + text).split(_SECTION)[1:]
    return [(section.partition("\n")[0], f"## {section.rstrip()}\n") for section in sections]
