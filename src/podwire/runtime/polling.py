"""Waiting in code that has no event loop: what begins or ends processes before or after there is one.

The condition is asked again every 5 ms. Not for coroutines: it stops the loop.
"""

import time
from collections.abc import Callable

_INTERVAL_S = 0.005


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Asks until the condition holds or ``within_s`` seconds have gone by; whether it held at last."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_INTERVAL_S)
    return True
