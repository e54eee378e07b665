"""The command line of Kubernetes' own suite."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance import suite
from tests.conformance.suite import SuiteRun

RUN = SuiteRun(Path("/b/e2e.test"), Path("/k/config"), Path("/r"), ("sig-apps", "sig-node"))


def test_focus_chooses_conformance_specs_of_sigs() -> None:
    focus = re.compile(suite.focus(RUN.sigs))
    assert focus.search("[sig-apps] Job works [Slow] [Conformance]")
    assert not focus.search("[sig-apps] Job works [Slow]")
    assert not focus.search("[sig-auth] about [sig-apps] [Conformance]")


def test_one_process_runs_the_binary_alone() -> None:
    assert suite.command(RUN) == [
        "/b/e2e.test", "--kubeconfig=/k/config", "--provider=skeleton", "--report-dir=/r", "--disable-log-dump=true",
        r"--ginkgo.focus=^\[(sig-apps|sig-node)\].*\[Conformance\]", "--ginkgo.timeout=3h", "--ginkgo.no-color",
    ]  # fmt: skip


def test_several_processes_run_through_ginkgo() -> None:
    run = replace(RUN, skip="Slow|Serial", ginkgo=Path("/b/ginkgo"), processes=4)
    assert suite.command(run) == [
        "/b/ginkgo", "--procs=4", "--no-color", r"--focus=^\[(sig-apps|sig-node)\].*\[Conformance\]",
        "--skip=Slow|Serial", "--timeout=3h", "/b/e2e.test", "--", "--kubeconfig=/k/config", "--provider=skeleton",
        "--report-dir=/r", "--disable-log-dump=true",
    ]  # fmt: skip
    suite.check_processes(4, run.ginkgo)
    with pytest.raises(ValueError, match="4 processes need Ginkgo's program"):
        suite.check_processes(4, None)


def test_skipped_specs_are_not_expected() -> None:
    assert suite.skips("Slow|Serial", "[sig-apps] Job [Slow] [Conformance]")
    assert not suite.skips("", "[sig-apps] Job [Slow] [Conformance]")
