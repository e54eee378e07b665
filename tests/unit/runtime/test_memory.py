"""What is called after a large load."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

from podwire.runtime import memory

_ROOT = Path(__file__).parents[3]


class Node:
    """Part of a ring, which only the collector finds."""

    def __init__(self) -> None:
        self.other: object = None


def ring() -> "weakref.ref[Node]":
    item, other = Node(), Node()
    item.other, other.other = other, item
    return weakref.ref(item)


def settle_with_rings() -> None:
    """Fails where settling keeps garbage, or searches again what stays."""
    lost, remaining = ring(), Node()
    remaining.other = remaining
    memory.settle()
    assert lost() is None
    assert gc.get_freeze_count() > 0
    assert not any(obj is remaining for obj in gc.get_objects())
    result = weakref.ref(remaining)
    del remaining
    gc.collect()
    assert result() is not None
    memory.settle()
    assert result() is not None
    memory.settle(later=True)
    assert result() is None


def test_garbage_goes_and_what_stays_is_not_searched_again() -> None:
    """In a process of its own: five searches of all that the tests import take seconds."""
    program = f"from {__name__} import settle_with_rings; settle_with_rings()"
    ended = subprocess.run((sys.executable, "-c", program), cwd=_ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
