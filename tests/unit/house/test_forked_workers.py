"""``tests/forked_workers.py``: real runs of pytest on small files."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_FIXTURE = """
import os

import pytest

@pytest.fixture(scope="session")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    yield os.getpid()
    with open("ended", "a") as file:
        print(os.getpid(), folder.is_dir(), file=file)
"""
_PLAIN = """
import os

import pytest

@pytest.mark.parametrize("number", range(3))
def test_numbers(number, worker):
    print(f"the number is {number}")
    assert number != 2 and worker == os.getpid()

@pytest.mark.skip("not here")
def test_skipped():
    pass
"""
_DEADLY = """
import os

def test_dies():
    os.kill(os.getpid(), 9)

def test_later():
    pass
"""
_WAITING = """
import time

def test_before():
    pass

def test_waits():
    time.sleep(600)

def test_after():
    pass
"""
_TEARDOWN = """
import pytest

@pytest.fixture(scope="session")
def broken():
    yield
    raise OSError("the device is busy")

def test_good(broken):
    pass
"""


def run(folder: Path, files: Mapping[str, str], *options: str) -> tuple[int, str]:
    """The exit status and the output of pytest with two workers."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "--disable-plugin-autoload", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "tests.forked_workers", "--forks", "2", *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(_ROOT)}
    )
    return done.returncode, done.stdout + done.stderr


def test_results_and_output_of_workers_are_reported(tmp_path: Path) -> None:
    good = _PLAIN.replace("!= 2", "!= 3")
    files = {"conftest": _FIXTURE, "test_a": _PLAIN, "test_b": _PLAIN, "test_c": good}
    status, output = run(tmp_path, files, "-rA")
    assert status == 1, output
    assert "2 failed, 7 passed, 3 skipped" in output
    assert "FAILED test_a.py::test_numbers[2]" in output and "FAILED test_b.py::test_numbers[2]" in output
    assert output.count("the number is 2") == 3
    ended = (tmp_path / "ended").read_text().splitlines()
    assert 1 <= len(ended) <= 2 and all(line.endswith(" True") for line in ended), "once for each worker with a file"


def test_a_worker_that_dies_fails_its_tests_alone(tmp_path: Path) -> None:
    files = dict.fromkeys(("test_a", "test_b", "test_c"), _DEADLY) | {"test_d": "def test_good():\n    pass\n"}
    status, output = run(tmp_path, files)
    assert status == 1, output
    assert "6 failed, 1 passed" in output
    assert f"the worker ended with signal {int(signal.SIGKILL)} in one of the tests of test_c.py" in output


def test_a_test_that_does_not_end_fails_alone(tmp_path: Path) -> None:
    status, output = run(tmp_path, {"test_a": _WAITING, "test_b": "def test_good():\n    pass\n"}, "--test-limit", "1")
    assert status == 1, output
    assert "1 failed, 3 passed" in output and "FAILED test_a.py::test_waits - the test took longer than 1 s" in output
    assert re.search(r'test_a.py", line 8 in test_waits', output), "the place where it waits"


def test_session_fixtures_that_do_not_end_fail_the_run(tmp_path: Path) -> None:
    broken = _TEARDOWN.replace('raise OSError("the device is busy")', "import time; time.sleep(600)")
    status, output = run(tmp_path, {"test_a": broken, "test_b": "def test_good():\n    pass\n"}, "--test-limit", "1")
    assert status == 1, output
    assert "2 passed, 1 error" in output and "the end of the session's fixtures took longer than 1 s" in output


def test_a_failure_of_a_session_fixture_fails_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, {"test_a": _TEARDOWN})
    assert status == 1, output
    assert "the device is busy" in output and "1 passed, 1 error" in output


def test_the_first_failure_can_end_the_run(tmp_path: Path) -> None:
    slow = "import time\n\ndef test_one():\n    assert False\n\ndef test_two():\n    time.sleep(0.5)\n"
    status, output = run(tmp_path, {f"test_{number}": slow for number in range(9)}, "-x")
    assert status == 1, output
    assert "stopping after 1 failures" in output and "9 failed" not in output
