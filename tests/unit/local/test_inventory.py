"""Who may make local clusters, and where they may lie."""

import subprocess
import sys
from pathlib import Path

import pytest

from podwire.errors import ConfigError
from podwire.local import inventory


def test_capabilities_are_read_from_the_status_of_a_process() -> None:
    status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000201000\n"
    assert inventory.capabilities(status) == 1 << 21 | 1 << 12


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a-", "a_b", "a" * 33, "a/b", "..", "a b"])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--name: .*: expected lower-case letters"):
        inventory.check_name(name)


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "RUN_ROOT", tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--state-dir: .*/file/demo: cannot be written: Not a directory"):
        inventory.establish("demo", 1, tmp_path / "file", ())
    assert not (tmp_path / "run").exists()


_COME_AND_GO = """
import os, shutil, sys
import subprocess
import sys
from pathlib import Path
from podwire.local import inventory

root, number = Path(sys.argv[1]), sys.argv[2]
inventory.RUN_ROOT, inventory.STATE_ROOT = root / "run", root / "state"
for _ in range(150):
    topology = inventory.establish(f"c{number}", 1, None, ())
    claim = root / "claims" / str(topology.index)
    os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    claim.unlink()
    shutil.rmtree(topology.run)
    shutil.rmtree(topology.state)
    inventory.leave_roots()
"""


def test_concurrent_clusters_never_share_addresses(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    arguments = [sys.executable, "-c", _COME_AND_GO, str(tmp_path)]
    running = [subprocess.Popen([*arguments, str(number)], stderr=subprocess.PIPE, text=True) for number in range(3)]
    output = [process.communicate(timeout=60)[1] for process in running]
    assert output == ["", "", ""]
    assert not (tmp_path / "run").exists()
