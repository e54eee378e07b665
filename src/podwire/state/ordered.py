"""The difference of two sequences in order that have most values in common.

Equal blocks are compared as a whole, where values that are the same in memory take 10 ns each; every difference takes
about 5 us.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_BLOCK = 64


def difference(old: Sequence[T], new: Sequence[T], order: Callable[[T], Any]) -> tuple[list[T], list[T]]:
    """The values that are only in ``old``, and those only in ``new``; ``order`` is what both are sorted by.

    A value that is in both, but in another order, may be in both lists.
    """
    gone: list[T] = []
    added: list[T] = []
    at, to = 0, 0
    while at < len(old) and to < len(new):
        if old[at : at + _BLOCK] == new[to : to + _BLOCK]:
            at, to = at + _BLOCK, to + _BLOCK
            continue
        equal = _equal(old, new, at, to)
        at, to = at + equal, to + equal
        if at == len(old) or to == len(new):
            break
        before, after = order(old[at]), order(new[to])
        if before <= after:
            gone.append(old[at])
            at += 1
        if after <= before:
            added.append(new[to])
            to += 1
    return [*gone, *old[at:]], [*added, *new[to:]]


def _equal(old: Sequence[T], new: Sequence[T], at: int, to: int) -> int:
    """The number of equal values from index ``at`` of one list and index ``to`` of the other on."""
    count = 0
    while at + count < len(old) and to + count < len(new) and old[at + count] == new[to + count]:
        count += 1
    return count
