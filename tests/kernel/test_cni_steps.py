"""A CNI part that is killed between any two steps of a request leaves nothing that the next start cannot repair."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kernel.conftest import LINKS

from podwire.kernel import netns


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_a_kill_between_any_two_steps_leaves_nothing(tmp_path: Path, link: str) -> None:
    node, pods = tmp_path / "node", tmp_path / "pods"
    places = (node, *(pods / container for container in ("c1", "c2", "c3")))
    for place in places:
        netns.create(place)
    try:
        command = [sys.executable, "-m", "tests.kernel.cni_steps", str(tmp_path / "state"), str(pods), link]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            ["nsenter", f"--net={node}", *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert not report["problems"], "\n".join(report["problems"])
        assert min(report["steps"].values()) > 3, report["steps"]
        assert report["steps"]["ADD"] > report["steps"]["ADD for another plugin"]
        assert report["steps"]["ADD"] < report["steps"]["ADD of several pods"] < 3 * report["steps"]["ADD"]
        assert report["steps"]["DEL"] < report["steps"]["DEL of several pods"] < 3 * report["steps"]["DEL"]
    finally:
        for place in places:
            netns.delete(place)
