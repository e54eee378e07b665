"""The files of a pod's container runs: one record, log and termination message for each run."""

from pathlib import Path

import msgspec

from podwire.embedded.kubelet.orders import RECORD_FORM, ContainerRecord
from podwire.runtime.files import write_atomically
from podwire.runtime.stateform import check_form

_MESSAGE = 4096


class ContainerRecords:
    """The files ``<container>.<attempt>.{json,log,message}`` in one pod's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def attempts(self, container: str) -> list[int]:
        """The numbers of the runs that have a record, in order."""
        return sorted(int(path.stem.rpartition(".")[2]) for path in self._directory.glob(f"{container}.*.json"))

    def load(self, container: str, attempt: int) -> ContainerRecord | None:
        """The record of a run; None when it is missing or damaged.

        Raises: ConfigError when it is of a later form.
        """
        path = self._path(container, attempt)
        try:
            record = msgspec.json.decode(path.read_bytes(), type=ContainerRecord)
        except (OSError, msgspec.DecodeError):
            return None
        check_form(record.format, RECORD_FORM, str(path))
        return record

    def save(self, record: ContainerRecord) -> None:
        """Writes the record of a run."""
        write_atomically(self._path(record.name, record.attempt), msgspec.json.encode(record))

    def message(self, container: str, attempt: int) -> str:
        """The termination message of a run, at most 4 KiB; empty when the run wrote none."""
        try:
            data = (self._directory / f"{container}.{attempt}.message").read_bytes()
        except OSError:
            return ""
        return data[:_MESSAGE].decode(errors="replace")

    def delete(self, container: str, attempt: int) -> None:
        """Deletes the files of a run."""
        for path in self._directory.glob(f"{container}.{attempt}.*"):
            path.unlink(missing_ok=True)

    def _path(self, container: str, attempt: int) -> Path:
        return self._directory / f"{container}.{attempt}.json"
