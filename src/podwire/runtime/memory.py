"""Memory after a large load: what is free goes back to the system, what stays is not searched for garbage again.

The C library keeps freed blocks for later, and the collector looks at every container in each full round: 25 ms with
10,000 Services, in which the loop does nothing else. :func:`settle` costs such a round once.

A forked process shares what its parent set aside. To look at it is to copy it: 20 ms and 10 MiB in an agent of a local
cluster. So it stays aside until a later load replaces an earlier one, whose circles of objects nobody else would find.
"""

import ctypes
import gc


def settle(*, later: bool = False) -> None:
    """To be called when a large load is over; ``later``: another one before it has been replaced."""
    if later:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
