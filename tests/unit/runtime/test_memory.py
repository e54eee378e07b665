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
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


def settle_with_rings() -> None:
    """Fails where settling keeps garbage, or searches again what stays."""
    lost, kept = ring(), Node()
    kept.other = kept
    memory.settle()
    assert lost() is None
    assert gc.get_freeze_count() > 0
    assert not any(found is kept for found in gc.get_objects())
    found = weakref.ref(kept)
    del kept
    gc.collect()
    assert found() is not None
    memory.settle()
    assert found() is not None
    memory.settle(later=True)
    assert found() is None


def test_garbage_goes_and_what_stays_is_not_searched_again() -> None:
    """In a process of its own: five searches of all that the tests import take seconds."""
    program = f"from {__name__} import settle_with_rings; settle_with_rings()"
    ended = subprocess.run((sys.executable, "-c", program), cwd=_ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
