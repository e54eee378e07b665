"""The record of a process that outlives its parent, one file each: written by the parent, read by its successors.

A module of its own, so that commands which only list or end processes need no event loop.
"""

import os
from pathlib import Path

import msgspec

from podwire.runtime.files import write_atomically
from podwire.runtime.process import is_running, start_ticks
from podwire.runtime.stateform import check_form

FORM = 1
"""The number of the form of records."""


class Record(msgspec.Struct, frozen=True):
    """The content of a record file."""

    pid: int
    started: int
    """Start time in clock ticks since boot."""
    command: str
    """Hash of the command with which the child was started."""
    files: tuple[str, ...] = ()
    version: str = ""
    """The version of podwire that the child was started in; empty: its parent did not record it."""
    format: int = FORM

    @property
    def running(self) -> bool:
        """Whether the process of the record still runs."""
        return is_running(self.pid, self.started)


def write_record(file: Path, record: Record) -> None:
    """Replaces the record in a file.

    Raises: OSError.
    """
    write_atomically(file, msgspec.json.encode(record))


def record_self(directory: Path, name: str, version: str = "") -> None:
    """Writes a record of this process next to those of its children, so that all can be listed and ended together.

    Raises: OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    record = Record(os.getpid(), start_ticks(os.getpid()), "", version=version)
    write_record(directory / f"{name}.json", record)


def read_record(file: Path) -> Record | None:
    """The content of a record file; None when it is missing or damaged.

    Raises: ConfigError when it is of a later form.
    """
    try:
        record = msgspec.json.decode(file.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    check_form(record.format, FORM, str(file))
    return record
