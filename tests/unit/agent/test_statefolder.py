"""Folders that the agent cannot write: an error that names field, folder and reason, and exit status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from podwire.agent import statefolder
from podwire.agent.config import AgentConfig, CniSection
from podwire.cni.ipam.ledger import Ledger
from podwire.errors import ConfigError


def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig(node_name="n1", run_dir=str(tmp_path / "run"), state_dir=str(tmp_path / "state"))


def test_folders_are_made_and_nothing_is_left_in_them(tmp_path: Path) -> None:
    statefolder.check(config(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["run", "state"]


@pytest.mark.parametrize(("field", "name"), [("state_dir", "stateDir"), ("run_dir", "runDir")])
def test_folder_that_cannot_be_made_is_named(tmp_path: Path, field: str, name: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError) as failure:
        statefolder.check(replace(config(tmp_path), **{field: str(file / "folder")}))
    assert failure.value.path == name
    assert str(file / "folder") in str(failure.value) and "Not a directory" in str(failure.value)
    assert "expected a folder that the agent may write" in str(failure.value)


def test_folder_of_the_ledger_counts_with_the_part_cni(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    own = replace(config(tmp_path), cni=CniSection(database=str(tmp_path / "file/ipam.db")))
    statefolder.check(replace(own, parts=("policy",)))
    with pytest.raises(ConfigError, match=r"cni\.database"):
        statefolder.check(own)


def test_agent_ends_with_status_two_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = tmp_path / "agent.yaml"
    file.write_text(f"nodeName: n1\nrunDir: {tmp_path}/run\nstateDir: {tmp_path}/file/state\n")
    arguments = ["agent", "--config", str(file)]
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from podwire.cli.main import main; sys.exit(main())", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "stateDir" in done.stderr and f"{tmp_path}/file/state cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_ledger_that_cannot_be_opened_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "ipam.db"
    folder.mkdir()
    with pytest.raises(ConfigError) as failure:
        Ledger(folder)
    assert failure.value.source == str(folder) and "cannot be opened for writing" in str(failure.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ipam.db"], "it is not taken for a damaged file"
