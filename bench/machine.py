"""The machine in general words: cores, memory, kernel, Python. What a reader needs to compare, and no more."""

import os
import platform
import re
import time
from pathlib import Path

_QUIET = 0.7
"""Load average of a machine where nothing but this waits."""


def describe() -> str:
    """One sentence."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    gib = int(memory[1]) / 1024**2 if memory else 0.0
    kernel = ".".join(platform.release().split("-")[0].split(".")[:2])
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {gib:.0f} GiB of memory, Linux {kernel}, Python {platform.python_version()}"


def settle(within_s: float = 90.0) -> None:
    """Waits until the machine is quiet, or for as long: the last benchmark may have left it busy."""
    deadline = time.monotonic() + within_s
    while load() > _QUIET and time.monotonic() < deadline:
        time.sleep(1)


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def resident_mb(pid: int) -> tuple[float, float]:
    """Resident memory of a process, and its share where pages are shared with others, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Rss"] / 1024, sizes["Pss"] / 1024


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, all of its threads, those that ended too."""
    return time.clock_gettime(~pid << 3 | 2)  # its CPU clock, as clock_getcpuclockid(3) makes it


def age_s(pid: int) -> float:
    """How long ago a process began; the kernel says it in hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
