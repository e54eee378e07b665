"""Whose cluster is whose."""

import os
import subprocess
import sys

from podwire.runtime.process import start_ticks
from podwire.testing.lifecycle import free_name, kept_name, stale


def test_cluster_is_stale_when_its_process_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = start_ticks(os.getpid())
    names = (
        f"pytest-{os.getpid()}-{mine}-1",
        f"pytest-{os.getpid()}-{mine + 1}-1",  # the number of the process was used again
        f"pytest-{ended.pid}-{mine}-2",
        kept_name(),
        "podwire",
        "pytest-of-mine",
    )
    assert stale(names) == (names[1], names[2])


def test_names_are_valid_and_unique() -> None:
    name = free_name()
    assert len(name) <= 32
    assert stale((name,)) == ()
