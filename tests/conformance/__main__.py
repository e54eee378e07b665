"""``python -m tests.conformance``: shows Kubernetes' conformance specs, with a result for each.

Without ``--e2e``, it runs the tests that the rows of the chosen SIGs name, and a spec passes with its tests. With
``--e2e FILE`` it runs Kubernetes' own suite against a new local cluster, and compares its report with the list of known
failures. The exit status is 0 when everything is as the list says, 1 when not, 2 for wrong words.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance import suite, verdicts
from tests.conformance.junit import Outcome, read_ginkgo, read_pytest
from tests.conformance.rows import Row, chosen, expected_failures, read_known, read_rows

ROOT = Path(__file__).parents[2]
_PODWIRE = (sys.executable, "-m", "podwire")
_NODES = 2
"""The specs need two nodes at least."""


def arguments(tokens: Sequence[str]) -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("sigs", nargs="*", metavar="SIG", help="such as sig-apps or apps; all without a name")
    parser.add_argument("--e2e", type=Path, metavar="FILE", help="Kubernetes' own suite, the binary e2e.test")
    parser.add_argument("--ginkgo", type=Path, metavar="FILE", help="Ginkgo's program, to run --e2e in parallel")
    parser.add_argument("--procs", type=int, default=1, metavar="N", help="processes of --ginkgo")
    parser.add_argument("--skip", default="", metavar="REGEX", help="specs that --e2e leaves out")
    parser.add_argument("--report-dir", type=Path, metavar="DIR", help="keep the report here")
    return parser.parse_args(tokens)


def show_by_tests(rows: Sequence[Row], reports: Path) -> list[verdicts.Verdict]:
    """Runs the tests that rows name, each once; their verdicts."""
    tests = list(dict.fromkeys(f"tests/{test}" for row in rows for test in row.tests))
    report = reports / "tests.xml"
    parallel = ("-p", "tests.forked_workers", "--forks", "2")
    tokens = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *parallel, f"--junitxml={report}", *tests)
    subprocess.run(tokens, cwd=ROOT, check=False)
    return verdicts.of_tests(rows, read_pytest(report) if report.exists() else {})


def show_by_suite(rows: Sequence[Row], namespace: argparse.Namespace, reports: Path) -> list[verdicts.Verdict]:
    """Runs Kubernetes' own suite against a new cluster; its verdicts."""
    sigs = tuple(dict.fromkeys(row.sig for row in rows))
    known = expected_failures(list(rows), read_known())
    with new_cluster() as kubeconfig:
        run = suite.SuiteRun(
            namespace.e2e, kubeconfig, reports, sigs, namespace.skip, namespace.ginkgo, namespace.procs
        )
        subprocess.run(suite.command(run), check=False)
    expected = [row for row in rows if not suite.skips(namespace.skip, row.spec)]
    return verdicts.of_suite(expected, report_of(reports), known)


def report_of(reports: Path) -> dict[str, Outcome]:
    """The outcomes in the report of the suite; one failure where there is no report that can be read."""
    report = reports / suite.REPORT
    try:
        return read_ginkgo(report)
    except (OSError, ElementTree.ParseError) as failure:
        return {"the suite": Outcome("failed", f"no report: {failure}")}


@contextmanager
def new_cluster() -> Iterator[Path]:
    """The kubeconfig of a local cluster, which is removed after the block."""
    name = f"conformance-{os.getpid()}"
    try:
        subprocess.run((*_PODWIRE, "up", "--name", name, "--nodes", str(_NODES)), check=True, stdout=subprocess.DEVNULL)
        shown = subprocess.run((*_PODWIRE, "kubeconfig", "--name", name), check=True, capture_output=True, text=True)
        yield Path(shown.stdout.strip())
    finally:
        subprocess.run((*_PODWIRE, "down", "--name", name), check=False, stdout=subprocess.DEVNULL)


def main(value: Sequence[str]) -> int:
    """Runs what the words ask for; the exit status."""
    tokens = arguments(value)
    try:
        rows = chosen(read_rows(), tokens.sigs)
        if tokens.e2e is not None and not os.access(tokens.e2e, os.X_OK):
            raise ValueError(f"--e2e {tokens.e2e}: no such program")
        suite.check_processes(tokens.procs, tokens.ginkgo)
    except ValueError as wrong:
        print(f"conformance: {wrong}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="podwire-conformance-") as folder:
        reports = tokens.report_dir or Path(folder)
        reports.mkdir(parents=True, exist_ok=True)
        result = show_by_suite(rows, tokens, reports) if tokens.e2e else show_by_tests(rows, reports)
    print(f"\n{verdicts.listed(result)}\n\n{verdicts.table(result)}")
    return verdicts.status(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
