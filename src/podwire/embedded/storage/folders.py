"""The folders behind provisioned volumes: made with a volume and removed with it."""

import shutil
from pathlib import Path

from podwire.errors import ConfigError
from podwire.model.storage import PersistentVolume


def make(volume: PersistentVolume) -> None:
    """Makes the folder of a volume, writable by every user, since the user of its pods is not known.

    Raises: OSError.
    """
    path = Path(str((volume.spec.host_path or {})["path"]))
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)


def remove(volume: PersistentVolume, root: Path) -> None:
    """Removes the folder of a volume, if it exists.

    Raises: ConfigError when the volume's path is not directly below ``root``, so that an edited object never removes
    other files of the machine; OSError.
    """
    path = Path(str((volume.spec.host_path or {}).get("path", "")))
    where = f"PersistentVolume {volume.metadata.name}"
    if path.parent != root or path.name in ("", ".", ".."):
        raise ConfigError(where, "spec.hostPath.path", f"{path} is not a folder of {root}; it is not removed")
    if path.is_symlink():
        raise ConfigError(where, "spec.hostPath.path", f"{path} is a symbolic link; it is not removed")
    if path.exists():
        shutil.rmtree(path)
