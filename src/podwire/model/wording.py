"""Numbers and tables as text for people: counted nouns, durations, shares, aligned columns. Pure."""

from collections.abc import Iterable, Sequence


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 node``, ``2 nodes``; ``plural`` if the plural does not end with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def duration(milliseconds: float) -> str:
    """``812ms``, ``42s``, ``7m5s``, ``3h20m``, ``12d4h``; below ten seconds with one decimal, such as ``7.0s``."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f}ms"
    if milliseconds < 9950:
        return f"{milliseconds / 1000:.1f}s"
    seconds = int((milliseconds + 50) // 1000)
    days, hours, minutes = seconds // 86400, seconds % 86400 // 3600, seconds % 3600 // 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"


def percent(share: float) -> str:
    """A share from 0 to 1 as percent; one that is not 0 is never ``0%``, one below 1 never ``100%``."""
    if 0 < share < 0.01:
        return f"{100 * share:.2g}%" if share > 1e-5 else "<0.001%"
    if 0.995 <= share < 1:
        return ">99%"
    return f"{share:.0%}"


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Rows as aligned columns, two spaces apart, without trailing blanks."""
    table = [tuple(row) for row in rows]
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(max(map(len, table), default=0))]
    lines = ("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in table)
    return "\n".join(indent + line for line in lines)
