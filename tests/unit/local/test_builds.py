"""Builds of podwire: wheels and folders, their labels, and what a cluster records of them."""

import os
import zipfile
from pathlib import Path

import pytest

from podwire.errors import ConfigError
from podwire.local import builds
from podwire.local.topology import Topology


def package(folder: Path, text: str) -> Path:
    (folder / "podwire").mkdir(parents=True)
    (folder / "podwire" / "__init__.py").write_text(text)
    return folder


def wheel(folder: Path) -> Path:
    path = folder / "podwire-0.3.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("podwire/__init__.py", '"""A build."""')
        archive.writestr("podwire-0.3.0.dist-info/METADATA", "Name: podwire\nVersion: 0.3.0\n")
        program = zipfile.ZipInfo("podwire/cni/bin/podwire-cni")
        program.external_attr = 0o755 << 16
        archive.writestr(program, "program")
    return path


def test_a_wheel_is_unpacked_once_with_executable_programs(tmp_path: Path) -> None:
    build = builds.resolve(str(wheel(tmp_path)), tmp_path / "builds", "--version")
    assert build.label.startswith("0.3.0+")
    assert os.access(Path(build.root, "podwire/cni/bin/podwire-cni"), os.X_OK)
    assert builds.resolve(str(wheel(tmp_path)), tmp_path / "builds", "--version") == build
    assert len(list((tmp_path / "builds").iterdir())) == 1


def test_labels_follow_the_files_and_not_compiled_ones(tmp_path: Path) -> None:
    first = builds.resolve(str(package(tmp_path / "a", "x = 1")), tmp_path, "--version")
    (tmp_path / "a" / "podwire" / "__pycache__").mkdir()
    (tmp_path / "a" / "podwire" / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert builds.resolve(str(tmp_path / "a"), tmp_path, "--version") == first
    other = builds.resolve(str(package(tmp_path / "b" / "src", "x = 2").parent), tmp_path, "--version")
    assert other.label != first.label and other.root == str(tmp_path / "b" / "src")


@pytest.mark.parametrize("name", ["missing", "empty", "bad.whl"])
def test_what_is_no_build_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.whl").write_text("no archive")
    with pytest.raises(ConfigError, match=f"--version: .*{name}: "):
        builds.resolve(str(tmp_path / name), tmp_path / "builds", "--version")


def test_a_cluster_records_its_builds(tmp_path: Path) -> None:
    topology = Topology(name="a", index=0, segment_count=1, run=str(tmp_path), state=str(tmp_path))
    assert builds.recall(tmp_path / "state") is None and builds.read_components(topology) == {}
    build = builds.Build("/b", "0.1.0+1")
    builds.remember(tmp_path / "state", build)
    builds.write_components(topology, {"agent-node-1": build})
    assert builds.recall(tmp_path / "state") == build
    assert builds.read_components(topology) == {"agent-node-1": build}
    builds.forget(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_build_that_is_gone_or_changed_is_named(tmp_path: Path) -> None:
    build = builds.resolve(str(package(tmp_path / "a", "x = 1")), tmp_path, "--version")
    builds.check(build)
    (tmp_path / "a" / "podwire" / "__init__.py").write_text("x = 2")
    with pytest.raises(ConfigError, match=r"the folder has 0\+"):
        builds.check(build)
    (tmp_path / "a" / "podwire" / "__init__.py").unlink()
    with pytest.raises(ConfigError, match="does not exist any more"):
        builds.check(build)


def test_this_build_is_that_of_the_running_modules() -> None:
    own = builds.own()
    assert Path(own.root, "podwire/local/builds.py").is_file()
    assert own.environment["PYTHONPATH"] == own.root
    assert builds.label_of(os.getpid()) in ("", own.label)
