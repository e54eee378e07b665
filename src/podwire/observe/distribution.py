"""A histogram as Prometheus defines it: counts of observations at or below each bound. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec


class Histogram(msgspec.Struct, frozen=True):
    """One histogram at one moment, as a metric of ``observe.health``."""

    name: str
    help: str
    buckets: tuple[tuple[str, float], ...]
    """Upper bound as text and the observations at or below it; the last bound is ``+Inf``."""
    sum: float
    labels: dict[str, str] = {}
    kind: str = "histogram"


class Distribution:
    """Counts observations by upper bounds in ascending order; costs one number for each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many observations were counted."""
        return sum(self._counts)

    def histogram(self, name: str, text: str, labels: dict[str, str] | None = None) -> Histogram:
        """The metric as of now."""
        bounds = (*(str(float(bound)) for bound in self._bounds), "+Inf")
        counts = (float(count) for count in accumulate(self._counts))
        return Histogram(name, text, tuple(zip(bounds, counts, strict=True)), self._sum, labels or {})


def doubling_bounds(first: float, count: int) -> tuple[float, ...]:
    """``count`` bounds, each twice its predecessor."""
    return tuple(first * 2**power for power in range(count))
