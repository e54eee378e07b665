"""Copies of a cluster's context in a kubeconfig that belongs to the user.

``podwire kubeconfig --merge`` adds cluster, user and context of a local cluster to the user's file and makes the
context the current one; everything else in the file stays. ``podwire down`` removes them again. The cluster's run
folder has a list of the files with a copy. A file is replaced in one step and keeps its owner and permissions.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.local import credentials
from podwire.local.topology import Topology
from podwire.runtime.files import write_atomically

_SECTIONS = ("clusters", "users", "contexts")
_LIST = "kubeconfigs.json"
Document = dict[str, Any]


def merge(topology: Topology, file: Path) -> str:
    """Adds the cluster to the user's file, which is made if it is missing; the name of the context.

    Raises: ConfigError when the file is not a kubeconfig, or when another cluster has the same names in it.
    """
    own = _read(credentials.kubeconfig_path(topology, "admin"))
    theirs = _read(file) if file.exists() else {"apiVersion": "v1", "kind": "Config"}
    _check_owner(own, theirs, file, _files(topology))
    merged = _without(own, theirs)
    for section in _SECTIONS:
        merged[section] = [*merged.get(section, ()), *own[section]]
    merged["current-context"] = own["current-context"]
    _write(file, merged)
    _remember(topology, file)
    return str(own["current-context"])


def forget(topology: Topology) -> Iterator[Path]:
    """Removes the cluster from every file that it was added to; yields the changed files.

    A file that is missing, unreadable, or has another cluster of that name now is not changed.
    """
    for file in _files(topology):
        try:
            own, theirs = _read(credentials.kubeconfig_path(topology, "admin")), _read(file)
            _check_owner(own, theirs, file, ())
        except ConfigError:
            continue
        remaining = _without(own, theirs)
        if any(len(remaining[section]) < len(theirs.get(section) or ()) for section in _SECTIONS):
            if remaining.get("current-context") == own["current-context"]:
                remaining["current-context"] = ""
            _write(file, remaining)
            yield file


def _read(file: Path) -> Document:
    import yaml  # here, since most clusters are in no other file

    try:
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as failure:
        raise ConfigError(
            str(file), "", f"cannot be read: {getattr(failure, 'strerror', None) or failure}"
        ) from failure
    if document is None:
        return {}
    good = isinstance(document, dict) and all(
        isinstance(document.get(section) or [], list)
        and all(isinstance(entry, dict) for entry in document.get(section) or ())
        for section in _SECTIONS
    )
    if not good:
        raise ConfigError(str(file), "", "expected a kubeconfig: lists of clusters, users and contexts")
    return dict(document)


def _check_owner(own: Document, theirs: Document, file: Path, known: tuple[Path, ...]) -> None:
    """Raises: ConfigError when the file's cluster of the same name is another one."""
    mine = own["clusters"][0]
    for entry in theirs.get("clusters") or ():
        same = _authority(entry) == _authority(mine)
        if entry.get("name") == mine["name"] and not same and file.resolve() not in known:
            problem = f"another cluster has the name {mine['name']!r}; `kubectl config delete-cluster` removes it"
            raise ConfigError(str(file), "clusters", problem)


def _authority(entry: Document) -> object:
    cluster = entry.get("cluster")
    return cluster.get("certificate-authority-data") if isinstance(cluster, dict) else None


def _without(own: Document, theirs: Document) -> Document:
    """The user's document without the entries of the cluster."""
    remaining = dict(theirs)
    for section in _SECTIONS:
        names = {entry["name"] for entry in own[section]}
        remaining[section] = [entry for entry in theirs.get(section) or () if entry.get("name") not in names]
    return remaining


def _write(file: Path, document: Document) -> None:
    import yaml

    text = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)
    target = file.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = target.stat() if target.exists() else None
        write_atomically(target, text.encode(), before.st_mode & 0o777 if before else 0o600)
        if before is not None:
            os.chown(target, before.st_uid, before.st_gid)
    except OSError as failure:
        raise ConfigError(str(file), "", f"cannot be written: {failure.strerror}") from failure


def _files(topology: Topology) -> tuple[Path, ...]:
    try:
        names = msgspec.json.decode((Path(topology.run) / _LIST).read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.MsgspecError):
        return ()
    return tuple(map(Path, names))


def _remember(topology: Topology, file: Path) -> None:
    files = {*map(str, _files(topology)), str(file.resolve())}
    write_atomically(Path(topology.run) / _LIST, msgspec.json.encode(sorted(files)))
