"""The clock that other code gets as an argument.

Code that waits or reads the time takes a :class:`Clock`; tests pass a fake one (``tests/fakes/clock.py``). Only this
module calls ``asyncio.sleep`` and reads the wall clock.
"""

import asyncio
import datetime
import time
from typing import Protocol


class Clock(Protocol):
    """Time as seconds (monotonic) and as UTC instants (wall)."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; they never decrease."""
        ...

    def now(self) -> datetime.datetime:
        """The current instant, aware, in UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after ``seconds``; at once, but yielding, for zero or less."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def now(self) -> datetime.datetime:
        """The current instant in UTC."""
        return datetime.datetime.now(datetime.UTC)

    async def sleep(self, seconds: float) -> None:
        """Returns after ``seconds``."""
        await asyncio.sleep(max(0.0, seconds))


def rfc3339(instant: datetime.datetime) -> str:
    """``2026-01-02T03:04:05Z``, the form of ``metav1.Time``."""
    return instant.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def rfc3339_micro(instant: datetime.datetime) -> str:
    """``2026-01-02T03:04:05.000006Z``, the form of ``metav1.MicroTime``."""
    return instant.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_rfc3339(text: str) -> datetime.datetime:
    """The instant of either form.

    Raises: ValueError when the text is neither, also without a time zone.
    """
    instant = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if instant.tzinfo is None:
        raise ValueError(f"{text}: expected a time zone")
    return instant
