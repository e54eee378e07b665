"""Waiting in code that runs before or after the event loop, such as starting and ending processes.

The condition is checked every 5 ms. Not for coroutines: it stops the loop.
"""

import time
from collections.abc import Callable

_INTERVAL_S = 0.005


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Polls until the condition holds or ``within_s`` seconds have passed; whether it held at the end."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_INTERVAL_S)
    return True
