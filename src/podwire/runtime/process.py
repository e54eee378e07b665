"""The identity of a process: its number together with its start time.

The kernel reuses process numbers. A number from a file therefore identifies a process only if the process with that
number has the recorded start time.
"""

import os
import signal
from pathlib import Path


def start_ticks(pid: int) -> int:
    """The start time of a process in clock ticks since boot (/proc/<pid>/stat, field 22).

    0 when the process does not exist, or is a zombie: ended, but its parent has not read its status.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Whether the process with the number ``pid`` and the start time ``ticks`` runs."""
    return pid > 0 and ticks > 0 and start_ticks(pid) == ticks


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; False when the process has ended.

    Raises: PermissionError.
    """
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
