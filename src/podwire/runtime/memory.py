"""Memory after a large load: what is free goes back to the system, what stays is not searched for garbage again.

The C library keeps freed blocks for later, and the collector looks at every container in each full round: 25 ms with
10,000 Services, in which the loop does nothing else. :func:`settle` costs such a round once.
"""

import ctypes
import gc


def settle() -> None:
    """To be called when a large load is over, and again after the next one."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
