"""``make real``: podwire on Kubernetes' own control plane and kubelets, judged by Kubernetes' own suite.

``KUBERNETES_BIN`` names a folder with the programs of one version of Kubernetes and, in its folder ``images``, archives
of the images that the suite uses (``e2e.test --list-images``), since nodes have no way out. ``PODWIRE_IMAGE`` names an
archive with podwire's image; without it, ``scripts/make_image.py`` makes one. ``FOCUS`` replaces the choice of specs, a
regular expression; all of ``[sig-network]`` that is part of conformance otherwise.

Exit status: 0 when every spec passed, 1 when one failed or the cluster did not come up, 2 when something is missing.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance import suite
from tests.conformance.junit import Outcome, read_ginkgo
from tests.real import binaries, commands, credentials
from tests.real.cluster import NotReady, RealCluster
from tests.real.layout import RealLayout

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/podwire:real"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def main(environment: Mapping[str, str]) -> int:
    """Runs the tier; the exit status."""
    folder = Path(environment["KUBERNETES_BIN"]) if environment.get("KUBERNETES_BIN") else None
    programs, missing = binaries.find(folder, environment.get("PATH", ""))
    script = ROOT / "scripts/make_image.py"
    given_image = environment.get("PODWIRE_IMAGE", "")
    if not given_image and not script.exists():
        missing = [*missing, f"PODWIRE_IMAGE, an archive of the image {IMAGE}"]
    elif given_image and not Path(given_image).exists():
        missing = [*missing, f"PODWIRE_IMAGE: {given_image}"]
    if missing or folder is None:
        print("real: missing:\n" + "\n".join(f"  {line}" for line in missing), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="real-") as root:
        layout = RealLayout(Path(root))
        archive = Path(given_image) if given_image else make_image(layout.root)
        try:
            return run(layout, programs, [archive, *binaries.archives(folder)], environment.get("FOCUS", ""))
        except (NotReady, subprocess.CalledProcessError) as failure:
            print(f"real: {failure}", file=sys.stderr)
            return 1


def make_image(folder: Path) -> Path:
    """An archive with podwire's image for this machine.

    Raises: CalledProcessError.
    """
    archive = folder / "podwire.tar"
    machine = _MACHINES[platform.machine()]
    words = [sys.executable, "scripts/make_image.py", "--arch", machine, "--name", IMAGE, "--output", str(archive)]
    subprocess.run(words, check=True, cwd=ROOT)
    return archive


def run(layout: RealLayout, programs: Mapping[str, Path], images: list[Path], focus: str) -> int:
    """Starts the cluster, installs podwire, runs the suite; the exit status.

    Raises: NotReady, CalledProcessError.
    """
    credentials.write(layout, datetime.datetime.now(datetime.UTC))
    (layout.root / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    values = layout.root / "values.json"
    values.write_text(json.dumps(commands.chart_values(IMAGE)))
    with RealCluster(layout, programs, images) as cluster:
        cluster.install(ROOT / "deploy/helm/podwire", values)
        cluster.until("nodes", cluster.nodes_ready, 300)
        reports = layout.root / "reports"
        reports.mkdir()
        test = suite.SuiteRun(programs["e2e.test"], Path(layout.kubeconfig("admin")), reports, ("sig-network",))
        words = with_focus(suite.command(test), focus)
        subprocess.run(["nsenter", f"--net={layout.fabric}", "--", *words], check=False)
        return show(reports / suite.REPORT)


def with_focus(words: list[str], focus: str) -> list[str]:
    """The words of the suite's command with another choice of specs; an empty one changes nothing."""
    if not focus:
        return words
    return [f"--ginkgo.focus={focus}" if word.startswith("--ginkgo.focus=") else word for word in words]


def show(report: Path) -> int:
    """Prints the failed specs and the counts; the exit status."""
    try:
        outcomes = read_ginkgo(report)
    except (OSError, ElementTree.ParseError) as failure:
        outcomes = {"the suite": Outcome("failed", f"no report: {failure}")}
    failed = {name: outcome for name, outcome in outcomes.items() if outcome.result == "failed"}
    passed = sum(outcome.result == "passed" for outcome in outcomes.values())
    for name, outcome in failed.items():
        print(f"failed: {name}: {outcome.message}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
