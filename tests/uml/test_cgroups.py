"""Limits and usage of version 2 of control groups with controllers, which other kernels may bind to version 1."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.kernel import cgroup

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]

ROOT = Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[cgroup.Hierarchies]:
    """The group of one container run, in those of a node and of a pod."""
    (ROOT / "cgroup.subtree_control").write_text("+cpu +memory")
    node = cgroup.open_node(ROOT / "podwire/test/node-1")
    pod = node.inside("pod")
    cgroup.make(pod.unified)
    cgroup.enable(pod.unified)
    run = pod.inside("run")
    cgroup.make(run.unified)
    yield run
    assert cgroup.remove_tree(ROOT / "podwire")


def test_version_2_holds_processes_to_their_limits(group: cgroup.Hierarchies) -> None:
    assert group.controllers == {"cpu", "memory"} and not group.legacy
    cgroup.limit_cpu(group, 10_000)
    assert (group.unified / "cpu.max").read_text() == "10000 100000\n"
    cgroup.limit_cpu(group, None)
    assert (group.unified / "cpu.max").read_text() == "max 100000\n"
    cgroup.limit_memory(group, 32 << 20)
    code = "import sys; open(sys.argv[1], 'w').write('0'); bytearray(100 << 20)"
    eater = subprocess.run([sys.executable, "-c", code, str(group.unified / "cgroup.procs")], timeout=120, check=False)
    assert eater.returncode == -signal.SIGKILL
    assert cgroup.has_killed(str(group.unified))
    assert (cgroup.cpu_us(group.unified) or 0) > 0
    used = cgroup.working_set_bytes(group)
    assert used is not None and used < 32 << 20
