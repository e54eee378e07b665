"""The folder of a backup: contents under their digests, and an index that is written last.

Guarantees: 1. a content has its final name only when it is complete and on the disk; 2. the index exists only when all
contents do; a backup that ran out of space or was killed has none, and the same command continues in the folder;
3. nothing of a backup is used before the digests of all contents were compared.
"""

from pathlib import Path

from podwire.errors import ConfigError
from podwire.runtime.files import write_atomically
from podwire.upgrade.backup import index
from podwire.upgrade.backup.index import BackupEntry, BackupIndex, EntryKind

_PRIVATE = 0o600


class BackupFolder:
    """One folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Makes the folder for a new backup.

        Raises: ConfigError when it holds a backup already, or anything else; OSError.
        """
        if (self.path / index.INDEX).exists():
            raise ConfigError("--to", "", f"{self.path} already has a backup; name another folder")
        unfinished = {index.BLOBS, f".{index.INDEX}.new"}
        if self.path.exists() and any(child.name not in unfinished for child in self.path.iterdir()):
            raise ConfigError("--to", "", f"{self.path} is not empty; name a new folder")
        (self.path / index.BLOBS).mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, kind: EntryKind, name: str, data: bytes, node: str = "") -> BackupEntry:
        """Writes a content unless it is there; its entry.

        Raises: OSError, such as for a full disk.
        """
        entry = BackupEntry(kind=kind, name=name, node=node, digest=index.content_digest(data), size=len(data))
        path = self._blob(entry.digest)
        if not path.exists():
            write_atomically(path, data, _PRIVATE, durable=True)
        return entry

    def finish(self, complete: BackupIndex) -> None:
        """Writes the index, which makes the folder a backup.

        Raises: OSError.
        """
        write_atomically(self.path / index.INDEX, index.render(complete), _PRIVATE, durable=True)

    def open(self) -> BackupIndex:
        """The index, when all contents are as they were written.

        Raises: ConfigError naming the folder or the content.
        """
        source = self.path / index.INDEX
        try:
            parsed = index.parse(source.read_bytes(), str(source))
        except FileNotFoundError as failure:
            problem = f"is no complete backup: there is no {index.INDEX}"
            raise ConfigError(str(self.path), "", problem) from failure
        for entry in parsed.entries:
            self.content(entry)
        return parsed

    def content(self, entry: BackupEntry) -> bytes:
        """The content of an entry.

        Raises: ConfigError when it is missing or was changed.
        """
        path = self._blob(entry.digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError as failure:
            raise ConfigError(str(path), "", f"is missing, the content of {entry.title}") from failure
        if index.content_digest(data) != entry.digest:
            raise ConfigError(str(path), "", f"was changed: its content does not match its digest ({entry.title})")
        return data

    def _blob(self, digest: str) -> Path:
        return self.path / index.BLOBS / digest
