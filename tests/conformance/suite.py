"""The command line of Kubernetes' own end-to-end suite, a binary called ``e2e.test`` (pure).

Sources: ``test/e2e/framework/test_context.go`` of Kubernetes for the flags behind ``--``, and Ginkgo 2 for the others.
Ginkgo's own program is needed to run specs in parallel; it runs those that are marked as serial by themselves.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPORT = "junit_01.xml"
"""The file of the report in ``--report-dir``."""
_TIMEOUT = "3h"


@dataclass(frozen=True)
class SuiteRun:
    """One run of the suite against a cluster."""

    binary: Path
    kubeconfig: Path
    reports: Path
    """The folder of the report."""
    sigs: tuple[str, ...]
    skip: str = ""
    """A regular expression of code names that are left out."""
    ginkgo: Path | None = None
    """Ginkgo's program; without it the specs run one after the other."""
    processes: int = 1


def focus(sigs: Sequence[str]) -> str:
    """The regular expression that chooses the conformance specs of SIGs.

    >>> focus(["sig-apps", "sig-node"])
    '^\\\\[(sig-apps|sig-node)\\\\].*\\\\[Conformance\\\\]'
    """
    return rf"^\[({'|'.join(map(re.escape, sigs))})\].*\[Conformance\]".replace(r"\-", "-")


def skips(expression: str, spec: str) -> bool:
    """Whether an expression leaves out a spec.

    Raises: re.error for an expression that Python cannot read.
    """
    return bool(expression) and re.search(expression, spec) is not None


def check_processes(processes: int, ginkgo: Path | None) -> None:
    """Refuses several processes without Ginkgo's program.

    Raises: ValueError.
    """
    if processes > 1 and ginkgo is None:
        raise ValueError(f"{processes} processes need Ginkgo's program: e2e.test alone runs one spec at a time")


def command(run: SuiteRun) -> list[str]:
    """The words of the command."""
    arguments = {"focus": focus(run.sigs), "skip": run.skip, "timeout": _TIMEOUT}
    options = [f"{name}={value}" for name, value in arguments.items() if value]
    own = [
        f"--kubeconfig={run.kubeconfig}",
        "--provider=skeleton",
        f"--report-dir={run.reports}",
        "--disable-log-dump=true",
    ]
    if run.ginkgo is None:
        return [str(run.binary), *own, *(f"--ginkgo.{option}" for option in options), "--ginkgo.no-color"]
    parallel = [f"--procs={run.processes}", "--no-color", *(f"--{option}" for option in options)]
    return [str(run.ginkgo), *parallel, str(run.binary), "--", *own]
