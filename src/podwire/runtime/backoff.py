"""Exponential backoff with a ceiling and jitter.

Guarantees: 1. the first delay is ``first_s``; 2. each further one is twice the last, at most ``ceiling_s``;
3. jitter only lengthens, by at most ``jitter`` of the delay; 4. ``reset`` starts again at ``first_s``.
"""

import random


class Backoff:
    """Delays between the attempts of one operation."""

    def __init__(self, first_s: float = 0.05, ceiling_s: float = 30.0, jitter: float = 0.2) -> None:
        self._first_s = first_s
        self._ceiling_s = ceiling_s
        self._jitter = jitter
        self._next_s = first_s

    def next_delay_s(self) -> float:
        """The seconds to wait before the next attempt."""
        delay = self._next_s
        self._next_s = min(self._ceiling_s, self._next_s * 2)
        return delay * (1.0 + self._jitter * random.random())

    def reset(self) -> None:
        """Starts again at ``first_s``; to be called after a success."""
        self._next_s = self._first_s
