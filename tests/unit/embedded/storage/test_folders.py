"""Folders of volumes: only those below the root are removed."""

from pathlib import Path

import pytest

from podwire.embedded.storage import folders
from podwire.errors import ConfigError
from podwire.model.meta import ObjectMeta
from podwire.model.storage import PersistentVolume, VolumeSpec


def volume(path: Path) -> PersistentVolume:
    return PersistentVolume(metadata=ObjectMeta(name="v"), spec=VolumeSpec(host_path={"path": str(path)}))


def test_a_folder_is_made_and_removed(tmp_path: Path) -> None:
    item = volume(tmp_path / "v")
    folders.make(item)
    (tmp_path / "v/file").write_text("data")
    assert (tmp_path / "v").stat().st_mode & 0o777 == 0o777
    folders.remove(item, tmp_path)
    folders.remove(item, tmp_path)
    assert not (tmp_path / "v").exists()


def test_files_outside_the_root_stay(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    for path in (tmp_path / "outside", tmp_path / "root", tmp_path / "root/../outside", tmp_path / "root/link"):
        with pytest.raises(ConfigError):
            folders.remove(volume(path), tmp_path / "root")
    assert (tmp_path / "outside").is_dir()
