"""Memory after a large load: returns free memory to the system and excludes the rest from garbage collection.

The C library keeps freed blocks, and each full collection visits every container: 25 ms with 10,000 Services, during
which the event loop is blocked. :func:`settle` takes one such collection.

A forked process shares the objects that its parent has frozen. A collection that visits them copies their pages: 20 ms
and 10 MiB in an agent of a local cluster. So they stay frozen until a later load replaces an earlier one: only a
collection finds the reference cycles of the earlier load.
"""

import contextlib
import ctypes
import gc
from collections.abc import Iterator


def settle(*, later: bool = False) -> None:
    """To be called when a large load is over; ``later``: another one before it has been replaced."""
    if later:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A block in which much is imported: what stays for good is not searched for garbage, meanwhile or later.

    With all that ``podwire up`` imports, the searches take 60 ms.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
