"""A policy data plane that is added to the registry runs every case of the packet table without other changes."""

import os
import subprocess
import sys

import pytest
from tests.kernel.seam_run import ROOT, SeamRun, environment, run_with
from tests.kernel.test_policy_packets import CASES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MODULE = "tests.kernel.renamed_policy_dataplane"
PACKETS = "tests/kernel/test_policy_packets.py"
_SETTINGS = f"""
import {MODULE}
from podwire.policy.settings import parse_settings
print(parse_settings({{"mode": "renamed"}}).mode)
"""


@pytest.fixture(scope="module")
def seam(tmp_path_factory: pytest.TempPathFactory) -> SeamRun:
    """The tests of the data plane of :mod:`tests.kernel.renamed_policy_dataplane`."""
    folder = tmp_path_factory.mktemp("seam")
    return run_with(MODULE, "test_packet_table and (except or Pass)", (PACKETS,), folder)


def test_every_case_is_run_with_real_packets(seam: SeamRun) -> None:
    for case in CASES:
        assert any(case.name in line for line in seam.collected), case.name


def test_a_renamed_data_plane_passes_the_same_cases(seam: SeamRun) -> None:
    assert len([name for name in seam.passed if name.startswith(PACKETS)]) > 1


def test_settings_accept_its_name() -> None:
    command = [sys.executable, "-c", _SETTINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "renamed"
