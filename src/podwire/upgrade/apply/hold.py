"""Holds the network configuration of this node while its CNI pod is replaced.

A container runtime uses the configuration whose file name sorts first. Some networks remove their file when their pod
ends and write it again when the new one starts; a pod that starts in between would be wired by another program's file,
or not at all. So before the pod is replaced, a copy of the first file gets a name that sorts before all others, by
rename. After the new pod is ready the copy is removed, if the file that is then first names the same network and all of
its programs are there. Both steps can be repeated.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podwire.errors import ClusterError
from podwire.runtime.files import write_atomically
from podwire.upgrade.nodepods import HOLD, SUFFIXES

Say = Callable[[str], None]


def hold(conf_dir: Path, say: Say) -> None:
    """Makes the copy, unless it is there or there is no configuration.

    Raises: OSError.
    """
    if (copy := _copy(conf_dir)) is not None:
        say(f"{copy.name} is there already")
        return
    first = _first(conf_dir)
    if first is None:
        say(f"{conf_dir} has no configuration")
        return
    write_atomically(conf_dir / f"{HOLD}{first.suffix}", first.read_bytes(), durable=True)
    say(f"{first.name} stays in force")


def release(conf_dir: Path, bin_dir: Path, say: Say) -> None:
    """Removes the copy when the configuration of now can take its place.

    Raises: ClusterError when it cannot; the copy then stays in force. OSError.
    """
    copy = _copy(conf_dir)
    if copy is None:
        return
    first = _first(conf_dir)
    if first is None:
        raise ClusterError(f"{conf_dir} has no configuration but the copy {copy.name}, which stays")
    before, after = _read(copy), _read(first)
    if before.get("name") != after.get("name"):
        problem = f"{first.name} is of network {after.get('name')!r}, expected {before.get('name')!r}"
        raise ClusterError(f"{problem}; the copy {copy.name} stays")
    for plugin in _plugins(after):
        if not os.access(bin_dir / plugin, os.X_OK):
            raise ClusterError(f"{first.name} needs the program {plugin}, which {bin_dir} does not have")
    copy.unlink()
    say(f"{first.name} is in force again")


def _copy(conf_dir: Path) -> Path | None:
    return next((conf_dir / f"{HOLD}{suffix}" for suffix in SUFFIXES if (conf_dir / f"{HOLD}{suffix}").exists()), None)


def _first(conf_dir: Path) -> Path | None:
    """The configuration that the runtime would use without the copy."""
    paths = sorted(conf_dir.iterdir()) if conf_dir.is_dir() else []
    usable = (path for path in paths if path.suffix in SUFFIXES and not path.name.startswith((".", HOLD)))
    return next(usable, None)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as failure:
        raise ClusterError(f"{path.name} is not JSON: {failure}") from failure
    return document if isinstance(document, dict) else {}


def _plugins(document: dict[str, Any]) -> list[str]:
    entries = document.get("plugins") or [document]
    return [str(entry["type"]) for entry in entries if isinstance(entry, dict) and entry.get("type")]
