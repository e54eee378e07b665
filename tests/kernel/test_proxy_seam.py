"""A data plane that is added to the registry runs every case of the packet table without other changes."""

import os

import pytest
from tests.cases.service_table import read_cases
from tests.kernel.seam_run import ROOT, SeamRun, run_with

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

REAL = "tests/kernel/test_proxy_scenarios.py"
TRACED = ("tests/unit/proxy/test_packet_table.py", "tests/unit/proxy/test_scenarios.py")
FOLLOWING = ("tests/kernel/test_proxy_following.py", "tests/kernel/test_proxy_changes.py")
_OF_FOLLOWING = "(test_proxy_following or test_proxy_changes)"
_CHOSEN = (
    f"({_OF_FOLLOWING} and (ready or share or every_way)) or (not {_OF_FOLLOWING} and (hairpin or slices or balancer))"
)


@pytest.fixture(scope="module")
def seam(tmp_path_factory: pytest.TempPathFactory) -> SeamRun:
    """The tests of the data plane of :mod:`tests.kernel.renamed_service_dataplane`."""
    files = (REAL, *TRACED, *FOLLOWING)
    return run_with("tests.kernel.renamed_service_dataplane", _CHOSEN, files, tmp_path_factory.mktemp("seam"))


def test_every_case_runs_through_tracer_and_real_packets(seam: SeamRun) -> None:
    cases = [line for line in seam.collected if line.startswith((REAL, *TRACED))]
    for name in ("policies", "scenarios"):
        for case in read_cases(ROOT / f"tests/cases/services/{name}.yaml"):
            assert {REAL in line for line in cases if case.name in line} == {True, False}, case.name


def test_a_renamed_data_plane_passes_the_same_cases(seam: SeamRun) -> None:
    for file in (REAL, *TRACED):
        assert [name for name in seam.passed if name.startswith(file)], f"no case of {file} ran"


def test_changes_are_followed_through_the_renamed_data_plane(seam: SeamRun) -> None:
    for file in FOLLOWING:
        assert [name for name in seam.passed if name.startswith(file)], f"no test of {file} ran"
