"""What is called after a large load."""

import gc
import weakref

from podwire.runtime import memory


class Node:
    """Part of a ring, which only the collector finds."""

    def __init__(self) -> None:
        self.other: object = None


def ring() -> "weakref.ref[Node]":
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


def test_garbage_goes_and_what_stays_is_not_searched_again() -> None:
    lost, kept = ring(), Node()
    kept.other = kept
    try:
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
    finally:
        gc.freeze()  # as before the test, so that later ones do not search what all of them import
