"""The identity of a process: its number together with its start time.

The kernel uses process numbers again. A number that was read from a file therefore names a process only as long as the
process with that number has the start time that was noted beside it.
"""

import os
import signal
from pathlib import Path


def start_ticks(pid: int) -> int:
    """The start time of a process in clock ticks since boot (/proc/<pid>/stat, field 22).

    0 when there is no such process; a process that has ended and whose parent has not yet asked for its status (a
    zombie) counts as none.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Whether the process that had the number ``pid`` and the start time ``ticks`` still runs."""
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
