"""A data plane that is added to the registry runs every case of the packet table without other changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.service_table import read_cases

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ROOT = Path(__file__).parents[2]
REAL, TRACED = "tests/kernel/test_proxy_scenarios.py", ("test_packet_table.py", "test_scenarios.py")


def run(*arguments: str) -> str:
    """The output of pytest with the data plane of :mod:`tests.kernel.renamed_service_dataplane` in the registry."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.kernel.renamed_service_dataplane", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_case_runs_through_tracer_and_real_packets() -> None:
    collected = run("--collect-only", REAL, *(f"tests/unit/proxy/{name}" for name in TRACED))
    of_it = [line for line in collected.splitlines() if "renamed" in line]
    for name in ("policies", "scenarios"):
        for case in read_cases(ROOT / f"tests/cases/services/{name}.yaml"):
            assert {REAL in line for line in of_it if case.name in line} == {True, False}, case.name


def test_a_renamed_data_plane_passes_the_same_cases() -> None:
    output = run("-k", "renamed and (hairpin or slices or balancer)", REAL, *(f"tests/unit/proxy/{n}" for n in TRACED))
    assert "100%" in output


def test_changes_are_followed_through_the_renamed_data_plane() -> None:
    run("-k", "renamed and (ready or share or every_way)", "tests/kernel/test_proxy_following.py",
        "tests/kernel/test_proxy_changes.py")  # fmt: skip
