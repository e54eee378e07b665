"""The Helm chart and what is made from it."""

import subprocess
import sys

from tests.unit.house.syntax import ROOT


def test_schema_docs_and_manifests_follow_from_the_chart() -> None:
    command = [sys.executable, "scripts/render_chart.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
