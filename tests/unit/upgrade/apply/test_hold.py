"""The network configuration of a node while its CNI pod is replaced."""

import json
from pathlib import Path

import pytest

from podwire.errors import ClusterError
from podwire.upgrade.apply.hold import hold, release
from podwire.upgrade.backup.noderead import configurations
from podwire.upgrade.nodepods import HOLD


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with a network and another program's file that sorts later."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "conf").mkdir()
    program = tmp_path / "bin" / "flannel"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    write(tmp_path, "10-flannel.conflist", "cbr0")
    write(tmp_path, "87-bridge.conflist", "podman", "bridge")
    return tmp_path


def write(node: Path, name: str, network: str, plugin: str = "flannel") -> None:
    document = {"cniVersion": "1.0.0", "name": network, "plugins": [{"type": plugin}]}
    (node / "conf" / name).write_text(json.dumps(document))


def first(node: Path) -> str:
    """The network that the runtime uses now."""
    path = min(path for path in (node / "conf").iterdir() if path.suffix in (".conf", ".conflist"))
    return str(json.loads(path.read_text())["name"])


def test_the_copy_comes_before_every_known_network(node: Path) -> None:
    write(node, "00-multus.conf", "multus", "multus")
    hold(node / "conf", lambda _: None)
    assert min(path.name for path in (node / "conf").iterdir()) == f"{HOLD}.conf"


def test_a_backup_does_not_hold_the_copy(node: Path) -> None:
    hold(node / "conf", lambda _: None)
    names = [file.name for file in configurations(node / "conf")]
    assert names == ["10-flannel.conflist", "87-bridge.conflist"]


def test_another_programs_file_never_comes_first(node: Path) -> None:
    said: list[str] = []
    hold(node / "conf", said.append)
    hold(node / "conf", said.append)
    (node / "conf" / "10-flannel.conflist").unlink()
    assert first(node) == "cbr0"
    write(node, "10-flannel.conflist", "cbr0")
    release(node / "conf", node / "bin", said.append)
    release(node / "conf", node / "bin", said.append)
    assert first(node) == "cbr0" and sorted(path.name for path in (node / "conf").iterdir()) == [
        "10-flannel.conflist", "87-bridge.conflist",
    ]  # fmt: skip
    assert said == [
        "10-flannel.conflist stays in force", f"{HOLD}.conflist is there already",
        "10-flannel.conflist is in force again",
    ]  # fmt: skip


def test_the_copy_stays_while_nothing_can_take_its_place(node: Path) -> None:
    said: list[str] = []
    hold(node / "conf", said.append)
    (node / "conf" / "10-flannel.conflist").unlink()
    with pytest.raises(ClusterError, match=r"87-bridge.conflist is of network 'podman', expected 'cbr0'; the copy"):
        release(node / "conf", node / "bin", said.append)
    (node / "conf" / "87-bridge.conflist").unlink()
    with pytest.raises(ClusterError, match="no configuration but the copy"):
        release(node / "conf", node / "bin", said.append)
    write(node, "10-flannel.conflist", "cbr0", "missing")
    with pytest.raises(ClusterError, match="needs the program missing, which"):
        release(node / "conf", node / "bin", said.append)
    assert first(node) == "cbr0"


def test_a_node_without_a_configuration_has_nothing_to_hold(tmp_path: Path) -> None:
    said: list[str] = []
    hold(tmp_path, said.append)
    release(tmp_path, tmp_path, said.append)
    assert said == [f"{tmp_path} has no configuration"] and list(tmp_path.iterdir()) == []
