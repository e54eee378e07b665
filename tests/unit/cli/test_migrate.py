"""Wrong input of ``podwire migrate``: exit status 2, one line, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from podwire.install.migration.nodecheck import flannel_devices
from podwire.state.network import parse


def podwire(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "podwire.cli.main", "migrate", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("node", "jump"), "STEP: 'jump' is not a step on nodes; the steps are check, verify, network"),
        (("node", "network", "--before", "{"), "--before: Input data was truncated"),
        (("node", "network", "--before", '{"pods": "x"}'), "--before: Expected `int`, got `str` - at `$.pods`"),
    ],
)
def test_wrong_steps_and_facts_are_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("nodeName: a\n")
    status, errors = podwire(*words, "--config", str(file))
    assert (status, errors.startswith(f"podwire: {message}")) == (2, True), errors
    assert "Traceback" not in errors


def test_only_tunnels_of_flannel_are_taken_over() -> None:
    state = parse(
        "link flannel.1 up type vxlan id 1 dstport 8472\nlink vxlan9 up type vxlan id 9 dstport 4789\n"
        "link flannel0 up type bridge"
    )
    assert [link.name for link in flannel_devices(state)] == ["flannel.1"]
