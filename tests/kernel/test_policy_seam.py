"""A policy data plane that is added to the registry runs every case of the packet table without other changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kernel.test_policy_packets import CASES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ROOT = Path(__file__).parents[2]
_SETTINGS = """
from tests.kernel import renamed_policy_dataplane
from podwire.policy.settings import parse_settings
print(parse_settings({"mode": "renamed"}).mode)
"""


def run(*arguments: str) -> str:
    """The output of Python with the data plane of :mod:`tests.kernel.renamed_policy_dataplane` in the registry."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PYTEST = ("-m", "pytest", "-p", "tests.kernel.renamed_policy_dataplane", "-p", "no:randomly")
PACKETS = "tests/kernel/test_policy_packets.py"


def test_every_case_is_run_with_real_packets() -> None:
    collected = run(*PYTEST, "--collect-only", PACKETS)
    of_it = [line for line in collected.splitlines() if "renamed" in line]
    for case in CASES:
        assert any(case.name in line for line in of_it), case.name


def test_a_renamed_data_plane_passes_the_same_cases() -> None:
    assert "100%" in run(*PYTEST, "-k", "renamed and test_packet_table and (except or Pass)", PACKETS)


def test_settings_accept_its_name() -> None:
    assert run("-c", _SETTINGS).strip() == "renamed"
