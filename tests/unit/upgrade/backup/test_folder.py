"""A backup is whole or it is none: full disks, kills, changed and missing contents."""

import errno
import os
from pathlib import Path

import pytest

from podwire.errors import ConfigError
from podwire.upgrade.backup import index
from podwire.upgrade.backup.folder import BackupFolder
from podwire.upgrade.backup.index import BackupIndex


def made(path: Path) -> tuple[BackupFolder, BackupIndex]:
    folder = BackupFolder(path)
    folder.prepare()
    entries = (folder.put("object", "ConfigMap a/b", b"one"), folder.put("kernel", "nft", b"two", "node-1"))
    complete = BackupIndex(cluster="uid", entries=entries)
    folder.finish(complete)
    return folder, complete


def test_a_backup_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder, complete = made(tmp_path / "b")
    opened = folder.open()
    assert (opened.entries, opened.nodes()) == (complete.entries, ("node-1",))
    assert [folder.content(entry) for entry in opened.entries] == [b"one", b"two"]
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "b").rglob("*") if path.is_file()} == {0}


def test_a_second_backup_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    folder, _ = made(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"--to: .* already has a backup"):
        folder.prepare()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "own.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        BackupFolder(tmp_path / "c").prepare()


def test_a_backup_without_an_index_is_none_and_continues(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path)
    folder.prepare()
    entry = folder.put("object", "ConfigMap a/b", b"one")
    (tmp_path / f".{index.INDEX}.new").write_text("{")
    with pytest.raises(ConfigError, match="is no complete backup"):
        folder.open()
    folder.prepare()
    assert folder.put("object", "ConfigMap a/b", b"one") == entry
    folder.finish(BackupIndex(entries=(entry,)))
    assert folder.open().entries == (entry,)


def test_a_full_disk_leaves_no_content_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = BackupFolder(tmp_path)
    folder.prepare()

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        folder.put("object", "ConfigMap a/b", b"one")
    assert list((tmp_path / index.BLOBS).iterdir()) == []
    monkeypatch.undo()
    assert folder.content(folder.put("object", "ConfigMap a/b", b"one")) == b"one"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"two"), "was changed: its content does not match its digest .ConfigMap a/b."),
        (Path.unlink, "is missing, the content of ConfigMap a/b"),
    ],
)
def test_damaged_contents_are_recognized(tmp_path: Path, damage: object, message: str) -> None:
    folder, complete = made(tmp_path)
    assert callable(damage)
    damage(tmp_path / index.BLOBS / complete.entries[0].digest)
    with pytest.raises(ConfigError, match=message):
        folder.open()


def test_an_edited_or_cut_index_is_refused(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    path = tmp_path / index.INDEX
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"uid"', b'"other"'))
    with pytest.raises(ConfigError, match="digest: expected"):
        folder.open()
    path.write_bytes(text[: len(text) // 2])
    with pytest.raises(ConfigError, match="expected the index of a backup"):
        folder.open()
    path.write_bytes(text.replace(b'"cluster"', b'"version": 2, "cluster"'))
    with pytest.raises(ConfigError, match="version: expected 1, got 2"):
        folder.open()
