"""`podwire down` restores the machine, whatever state the cluster is in."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.driver import podwire
from tests.e2e.machine_inventory import inventory

NAME = f"gone-{os.getpid()}"
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*podwire(), *arguments], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(autouse=True)
def taken_down() -> Iterator[None]:
    yield
    run("down", "--name", NAME)


def ends_as_it_began(before: dict[str, str]) -> None:
    """Fails when the machine has more or less than before; processes of other tests may have ended."""
    deadline = time.monotonic() + 60
    rest = before["processes"].splitlines()
    while True:
        after = inventory(NAME)
        running = after["processes"].splitlines()
        same = {**after, "processes": ""} == {**before, "processes": ""} and set(running) <= set(rest)
        if same or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert same, (after, before)


def cluster_pids(name: str) -> list[int]:
    """Every process in the cluster's cgroup."""
    folders = Path("/sys/fs/cgroup").glob(f"**/podwire/{name}/**/cgroup.procs")
    return [int(word) for file in folders for word in file.read_text().split()]


def test_up_and_down_leave_nothing() -> None:
    before = inventory(NAME)
    done = run("up", "--name", NAME, "--nodes", "2", "--segments", "2", "-f", str(EXAMPLES / "vote"), "--probe")
    assert done.returncode == 0, done.stdout + done.stderr
    assert inventory(NAME) != before, "the inventory does not see a cluster"
    assert run("down", "--name", NAME).returncode == 0
    ends_as_it_began(before)


def test_down_after_kill_of_everything() -> None:
    before = inventory(NAME)
    assert run("up", "--name", NAME, "--nodes", "2").returncode == 0
    pids = cluster_pids(NAME)
    assert len(pids) > 8, pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    assert run("down", "--name", NAME).returncode == 0
    ends_as_it_began(before)


def test_down_of_an_interrupted_up() -> None:
    before = inventory(NAME)
    for delay_s in (0.2, 0.5, 1.0):
        starting = subprocess.Popen(
            [*podwire(), "up", "--name", NAME, "--nodes", "3"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(delay_s)
        starting.kill()
        starting.wait()
        assert run("down", "--name", NAME).returncode == 0
        ends_as_it_began(before)


def test_down_twice_and_down_of_nothing() -> None:
    before = inventory(NAME)
    for _ in range(2):
        done = run("down", "--name", NAME)
        assert done.returncode == 0
        assert "there is no cluster" in done.stdout
    ends_as_it_began(before)
