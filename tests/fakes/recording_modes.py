"""Data planes that only record what is done to them, under the names ``nftables`` and ``iptables``."""

import os
from typing import Any

from podwire.errors import KernelError


class RecordingDataPlane:
    """Records each call; every method of a data plane may be called."""

    instant = True

    def __init__(self, name: str, modes: "RecordingModes") -> None:
        self.name = name
        self._modes = modes
        self._pipe = os.pipe()

    def __getattr__(self, method: str) -> Any:
        return lambda *_: self._modes.record(method, self.name)

    def fileno(self) -> int:
        """A descriptor that is never readable."""
        return self._pipe[0]

    def close(self) -> None:
        """Closes the descriptor."""
        self._modes.record("close", self.name)
        for end in self._pipe:
            os.close(end)


class RecordingModes:
    """The modes of a test. ``failures`` holds what a call raises, by method and mode: ``load iptables``."""

    def __init__(self) -> None:
        self.failures: dict[str, KernelError] = {}
        self._calls: list[str] = []

    def names(self) -> tuple[str, ...]:
        """Both modes, the preferred one first."""
        return ("nftables", "iptables")

    def record(self, method: str, name: str) -> tuple[str, ...]:
        """The call as one line. Raises: the failure that is set for the call."""
        call = f"{method} {name}"
        if call in self.failures:
            raise self.failures[call]
        self._calls.append(call)
        return (call,)

    def open(self, name: str, _facts: object) -> Any:
        """A data plane of this name."""
        self.record("open", name)
        return RecordingDataPlane(name, self)

    def clear(self, name: str) -> bool:
        """True: the kernel held something of this mode."""
        return bool(self.record("clear", name))

    def taken(self) -> list[str]:
        """The calls since the last time."""
        calls, self._calls = self._calls, []
        return calls
