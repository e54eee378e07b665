"""The machine in general words: cores, memory, kernel, Python. What a reader needs to compare, and no more."""

import os
import platform
import re
from pathlib import Path


def describe() -> str:
    """One sentence."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    gib = int(memory[1]) / 1024**2 if memory else 0.0
    kernel = ".".join(platform.release().split("-")[0].split(".")[:2])
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {gib:.0f} GiB of memory, Linux {kernel}, Python {platform.python_version()}"


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def resident_mb(pid: int) -> tuple[float, float]:
    """Resident memory of a process, and its share where pages are shared with others, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Rss"] / 1024, sizes["Pss"] / 1024


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
