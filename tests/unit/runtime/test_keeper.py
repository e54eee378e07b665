"""Two processes with one table of descriptors, each started again by the other; in processes of their own."""

import subprocess
import sys
from pathlib import Path

SHARED = """
import os, signal
from podwire.runtime.keeper import fork_sharing_descriptors
reading, writing = os.pipe()
pid = fork_sharing_descriptors()
if pid == 0:
    opened = os.memfd_create("kept")
    os.write(opened, b"kept")
    os.write(writing, str(opened).encode())
    os.kill(os.getpid(), signal.SIGKILL)
status = os.waitpid(pid, 0)[1]
print(os.WTERMSIG(status), os.pread(int(os.read(reading, 10)), 5, 0).decode())
"""

KEPT = """
import os, signal, sys
from podwire.runtime.keeper import keep_descriptors
log = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND)
own = os.getpid()
def work():
    os.write(log, b"w")
    runs = os.fstat(log).st_size
    if runs == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if runs == 2:
        raise ValueError("on purpose")
    os.write(log, b"k" if os.getppid() == own else b"o")
keep_descriptors(work, lambda: os._exit(9))
"""

BEREAVED = """
import os, signal, sys, time
from podwire.runtime.keeper import keep_descriptors, replace
def work():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10)
def take_over():
    os.set_inheritable(1, True)
    replace((sys.executable, "-c", f"import os; os.write({copy}, b'went on')"), {})
copy = os.dup(1)
keep_descriptors(work, take_over)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_descriptors_of_a_killed_child_stay_open() -> None:
    assert run(SHARED).stdout == "9 kept\n"


def test_keeper_restarts_killed_worker_and_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(KEPT, str(log))
    assert done.returncode == 0
    assert "ValueError: on purpose" in done.stderr
    assert log.read_text() == "wwwk"


def test_orphaned_worker_execs_with_all_descriptors_open() -> None:
    assert run(BEREAVED).stdout == "went on"
