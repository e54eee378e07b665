"""Which folders of which hierarchy a machine's mounts and a process's membership lead to."""

from pathlib import Path

import pytest

from podwire.kernel.cgroup import find_legacy

HYBRID = """\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
TOGETHER = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:7 - cgroup cgroup rw,cpu,cpuacct\n"
IN_DOCKER = "35 31 0:32 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
UNIFIED = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
CASES = {
    "hybrid, own group below memory": (
        HYBRID, "4:memory:/user/7\n1:cpu:/\n0::/",
        {"cpu": "/sys/fs/cgroup/cpu", "memory": "/sys/fs/cgroup/memory/user/7"},
    ),
    "two controllers in one hierarchy": (
        TOGETHER, "3:cpu,cpuacct:/system.slice\n", {"cpu": "/sys/fs/cgroup/cpu,cpuacct/system.slice"},
    ),
    "a mount of a part of the hierarchy": (
        IN_DOCKER, "4:memory:/docker/77/inner\n", {"memory": "/sys/fs/cgroup/memory/inner"},
    ),
    "version 2 alone": (UNIFIED, "0::/user.slice\n", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_version_1_folders_are_below_the_own_group(name: str) -> None:
    mountinfo, membership, expected = CASES[name]
    assert find_legacy(mountinfo, membership) == {key: Path(path) for key, path in expected.items()}
