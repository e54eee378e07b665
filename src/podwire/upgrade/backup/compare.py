"""Compares the texts of a node in a backup with those of now. Pure.

Texts of the kernel are compared as sets of lines, since their order carries little and the programs sort differently.
State that changes by itself is left out: devices and routes of single pods, and the entries of connection tracking.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from podwire.model.meta import Fact
from podwire.model.wording import count
from podwire.upgrade.backup.index import EntryKind

_VOLATILE = {"conntrack"}
_TIMED = re.compile(r"\s(?:expires|timeout) \w+|counter packets \d+ bytes \d+|\[\d+:\d+\]")
_SHOWN = 5


TextKey = tuple[EntryKind, str]
"""Kind and name of a text."""


class TextDifference(Fact, frozen=True, kw_only=True):
    """How one text of a node differs: lines that are missing now, and lines that were not there."""

    kind: EntryKind
    name: str
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def lines(self) -> Iterable[str]:
        """In words, with the first lines."""
        yield f"{self.kind} {self.name}: {_lines_are(self.missing)} missing, {_lines_are(self.added)} new"
        for mark, texts in (("-", self.missing), ("+", self.added)):
            yield from (f"  {mark}{text}" for text in texts[:_SHOWN])
            if len(texts) > _SHOWN:
                yield f"  {mark}... {len(texts) - _SHOWN} further lines"


def compare(before: Mapping[TextKey, bytes], now: Mapping[TextKey, bytes]) -> tuple[TextDifference, ...]:
    """The differences of all texts, by (kind, name); texts without one are left out."""
    result = []
    for kind, name in sorted({*before, *now}):
        if name in _VOLATILE:
            continue
        old, new = (_lines(texts.get((kind, name), b"")) for texts in (before, now))
        missing, added = tuple((old - new).elements()), tuple((new - old).elements())
        if missing or added:
            result.append(TextDifference(kind=kind, name=name, missing=missing, added=added))
    return tuple(result)


def _lines(data: bytes) -> Counter[str]:
    lines = (_TIMED.sub("", line.strip()) for line in data.decode(errors="replace").splitlines())
    return Counter(line for line in lines if line)


def _lines_are(texts: tuple[str, ...]) -> str:
    """``1 line is``, ``2 lines are``."""
    return f"{count(len(texts), 'line')} {'is' if len(texts) == 1 else 'are'}"
