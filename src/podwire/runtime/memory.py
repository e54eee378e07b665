"""Memory after a large load: free memory goes back to the system, and the rest is not searched for garbage again.

The C library keeps freed blocks for later, and the collector looks at every container in each full round: 25 ms with
10,000 Services, in which the loop does nothing else. :func:`settle` costs such a round once.

A forked process shares the objects that its parent has frozen. Searching them copies them: 20 ms and 10 MiB in an agent
of a local cluster. So they stay frozen until a later load replaces an earlier one: only a search finds the circles of
objects that the earlier load leaves.
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
