"""The number of files and sockets that this process may have open.

Shells, containers and services often begin with 1,024 (``ulimit -n``), which an API server with many watches, a kubelet
with many pods or a probe of many connections exceeds. A process may raise its own limit up to the hard limit, and with
CAP_SYS_RESOURCE beyond. Programs that it starts inherit the limit.
"""

import resource

OPEN_FILES = 65536
"""Enough for thousands of pods; below the kernel's usual maximum for a process (fs.nr_open, 1048576)."""


def raise_open_files(target: int = OPEN_FILES) -> int:
    """Raises the limit of open files to ``target`` or as far as allowed; returns the resulting limit.

    A higher limit stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _enough(soft, target):
        return _number(soft)
    for limit in ((target, hard if _enough(hard, target) else target), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        except (OSError, ValueError):
            continue
        return _number(limit[0])
    return _number(soft)


def _enough(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _number(limit: int) -> int:
    return OPEN_FILES if limit == resource.RLIM_INFINITY else limit
