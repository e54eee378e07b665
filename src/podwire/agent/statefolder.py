"""Checks that the agent can write the folders that its configuration names, before any part is constructed."""

import os
from pathlib import Path

from podwire.agent.config import AgentConfig
from podwire.errors import ConfigError

_FILE = ".podwire-write-check"
_SIZE = 4096
"""A block of usual file systems: an empty file can be made where no block is free."""


def check(config: AgentConfig) -> None:
    """Makes the folders, and writes and deletes a small file in each of them.

    Raises: ConfigError naming the field, the folder and the reason.
    """
    folders = {"runDir": Path(config.run_dir), "stateDir": Path(config.state_dir)}
    if "cni" in config.parts:
        folders |= {"cni.socket": config.socket.parent, "cni.database": config.database.parent}
    checked: set[Path] = set()
    for field, folder in folders.items():
        if folder in checked:
            continue
        checked.add(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / _FILE)
        except OSError as failure:
            reason = failure.strerror or str(failure)
            expected = "expected a folder that the agent may write, with free space"
            raise ConfigError("configuration", field, f"{folder} cannot be written: {reason}; {expected}") from failure


def _write(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(bytes(_SIZE))
            opened.flush()
            os.fsync(opened.fileno())
    finally:
        file.unlink(missing_ok=True)
