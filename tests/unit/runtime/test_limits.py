"""The limit of open files, in processes that begin with a low one."""

import os
import subprocess
import sys
from pathlib import Path

_SHOW = "import resource; from podwire.runtime.limits import raise_open_files; print(raise_open_files({wanted}), "
_SHOW += "*resource.getrlimit(resource.RLIMIT_NOFILE))"


def raised(soft: int, hard: int, expected: int, *before: str) -> list[int]:
    """The returned limit, and the soft and the hard one, in a process that begins with these."""
    arguments = ["prlimit", f"--nofile={soft}:{hard}", *before, sys.executable, "-c", _SHOW.format(wanted=expected)]
    return list(map(int, subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()))


def test_a_soft_limit_is_raised_to_what_is_wanted() -> None:
    assert raised(256, 1024, 900) == [900, 900, 1024]


def test_a_higher_limit_stays() -> None:
    assert raised(1024, 1024, 900) == [1024, 1024, 1024]


def test_the_hard_limit_is_raised_where_the_kernel_allows() -> None:
    """CAP_SYS_RESOURCE is bit 24 (linux/capability.h)."""
    status = Path("/proc/self/status").read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    assert raised(256, 512, 2048) == ([2048] * 3 if held >> 24 & 1 else [512] * 3)


def test_without_the_right_the_hard_limit_is_reached() -> None:
    drop = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource") if os.geteuid() == 0 else ()
    assert raised(256, 512, 2048, *drop) == [512, 512, 512]
