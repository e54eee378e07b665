"""The files of a pod's volumes: which content each volume has (pure), and keeping it on disk.

A volume made of API objects (configMap, secret, downwardAPI, projected) is a directory whose ``..data`` link points
to one with a time stamp; an update writes a new directory and replaces the link by rename, so that a reader sees
all old files or all new ones. It is kept among the files in memory, where /run is one, so that no token or secret
is written to a disk. emptyDir is a directory of the pod, hostPath the machine's own, a persistentVolumeClaim a
directory of the node that outlives the pod. Every other kind is an empty directory.
"""

import base64
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.kubelet.environment import ConfigLookup, PodFields, field, resource
from podwire.errors import ConfigError

_DATA = "..data"


class File(msgspec.Struct, frozen=True):
    """One file of a volume; ``mode`` are permission bits."""

    content: bytes
    mode: int = 0o644


Files = dict[str, File]


class TokenRequest(msgspec.Struct, frozen=True):
    """A service account token that a volume projects; an empty audience is the API server's own."""

    audience: str = ""
    life_s: int = 3600


class VolumeTokens(msgspec.Struct, frozen=True):
    """Service account tokens at hand, and the cluster's certificate authority."""

    by_wish: Mapping[TokenRequest, str] = {}
    ca: bytes = b""


class Content(msgspec.Struct, frozen=True):
    """The sources of a volume's content."""

    facts: Any
    objects: Any
    tokens: VolumeTokens = VolumeTokens()


def token_requests(volume: Mapping[str, Any]) -> tuple[TokenRequest, ...]:
    """The tokens that a volume projects."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    return tuple(_token_wish(s["serviceAccountToken"]) for s in sources if s.get("serviceAccountToken"))


def _token_wish(found: Mapping[str, Any]) -> TokenRequest:
    return TokenRequest(str(found.get("audience") or ""), int(found.get("expirationSeconds") or TokenRequest().life_s))


def object_kinds(volume: Mapping[str, Any]) -> bool:
    """Whether a volume's content is made of API objects and has to follow them."""
    return any(kind in volume for kind in ("configMap", "secret", "downwardAPI", "projected"))


def compile_files(volume: Mapping[str, Any], content: Content) -> Files:
    """The files of a volume made of API objects, by relative path.

    Raises: ConfigError naming what is missing.
    """
    if found := volume.get("configMap"):
        return _config_map(found, content, _mode(found))
    if found := volume.get("secret"):
        return _secret({**found, "name": found.get("secretName", "")}, content, _mode(found))
    if found := volume.get("downwardAPI"):
        return _downward(found, content, _mode(found))
    found = volume.get("projected") or {}
    files: Files = {}
    for source in found.get("sources") or ():
        files |= _projection(source, content, _mode(found))
    return files


def _mode(found: Mapping[str, Any]) -> int:
    mode = found.get("defaultMode")
    return 0o644 if mode is None else int(mode)


def _projection(source: Mapping[str, Any], content: Content, mode: int) -> Files:
    if found := source.get("configMap"):
        return _config_map(found, content, mode)
    if found := source.get("secret"):
        return _secret(found, content, mode)
    if found := source.get("downwardAPI"):
        return _downward(found, content, mode)
    if found := source.get("serviceAccountToken"):
        token = content.tokens.by_wish[_token_wish(found)]
        return {_safe(found.get("path", "token")): File(token.encode(), mode)}
    return {}


def _config_map(found: Mapping[str, Any], content: Content, mode: int) -> Files:
    objects: ConfigLookup = content.objects
    facts: PodFields = content.facts
    name = str(found.get("name", ""))
    if name == "kube-root-ca.crt" and content.tokens.ca:
        data: Mapping[str, bytes] | None = {"ca.crt": content.tokens.ca}
    else:
        data = objects.config_map(facts.pod.metadata.namespace, name)
    return _select(found, data, f'configmap "{name}"', mode)


def _secret(found: Mapping[str, Any], content: Content, mode: int) -> Files:
    objects: ConfigLookup = content.objects
    facts: PodFields = content.facts
    name = str(found.get("name", ""))
    return _select(found, objects.secret(facts.pod.metadata.namespace, name), f'secret "{name}"', mode)


def _select(found: Mapping[str, Any], data: Mapping[str, bytes] | None, what: str, mode: int) -> Files:
    optional = bool(found.get("optional"))
    if data is None:
        if optional:
            return {}
        raise ConfigError(what, "", f"{what} not found")
    items = found.get("items")
    if not items:
        return {_safe(key): File(value, mode) for key, value in data.items()}
    files: Files = {}
    for item in items:
        key = item.get("key", "")
        if key in data:
            files[_safe(item.get("path", key))] = File(data[key], int(item.get("mode") or mode))
        elif not optional:
            raise ConfigError(what, "", f"{what} references non-existent key: {key}")
    return files


def _downward(found: Mapping[str, Any], content: Content, mode: int) -> Files:
    facts: PodFields = content.facts
    files: Files = {}
    for item in found.get("items") or ():
        if reference := item.get("fieldRef"):
            text = field(reference.get("fieldPath", ""), facts)
        else:
            text = resource(item.get("resourceFieldRef") or {}, facts, facts.pod.spec.containers[0])
        files[_safe(item.get("path", ""))] = File(text.encode(), int(item.get("mode") or mode))
    return files


def _safe(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or parts[0].startswith(".."):
        raise ConfigError("volume", "path", f"{path!r} is not a relative path without ..")
    return path


def config_map_data(document: Mapping[str, Any]) -> dict[str, bytes]:
    """The keys of a ConfigMap."""
    text = {key: str(value).encode() for key, value in (document.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (document.get("binaryData") or {}).items()}


def secret_data(document: Mapping[str, Any]) -> dict[str, bytes]:
    """The keys of a Secret, decoded."""
    return {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}


def write_files(directory: Path, files: Files, stamp: str) -> bool:
    """Makes ``directory`` hold exactly ``files``; whether anything was written. ``stamp`` names a new content."""
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / _DATA
    if link.is_symlink() and _same(link, files):
        return False
    fresh = directory / f"..{stamp}"
    for path, file in files.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    fresh.mkdir(exist_ok=True)
    old = Path(os.readlink(link)) if link.is_symlink() else None  # noqa: PTH115
    beside = directory / "..data_new"
    beside.unlink(missing_ok=True)
    beside.symlink_to(fresh.name)
    beside.rename(link)
    _link_names(directory, {path.split("/")[0] for path in files})
    if old is not None and old.name != fresh.name:
        shutil.rmtree(directory / old, ignore_errors=True)
    return True


def _same(link: Path, files: Files) -> bool:
    held = {str(path.relative_to(link)): path for path in link.rglob("*") if path.is_file()}
    return held.keys() == files.keys() and all(held[n].read_bytes() == file.content for n, file in files.items())


def _link_names(directory: Path, names: set[str]) -> None:
    for entry in directory.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    for name in names:
        visible = directory / name
        if not visible.is_symlink():
            visible.symlink_to(f"{_DATA}/{name}")


class VolumeRoots(msgspec.Struct, frozen=True):
    """Directories of one pod: volumes, those in memory, and claims of the node."""

    volumes: Path
    memory: Path
    claims: Path


def prepare(volume: Mapping[str, Any], namespace: str, places: VolumeRoots) -> Path:
    """The directory or file that stands for a volume, made if need be; content of API objects comes later.

    Raises: ConfigError when a hostPath is not of the type it should be.
    """
    name = str(volume["name"])
    if found := volume.get("hostPath"):
        return _host_path(str(found.get("path", "/")), str(found.get("type") or ""))
    if found := volume.get("persistentVolumeClaim"):
        return _directory(places.claims / namespace / str(found.get("claimName", name)))
    if "ephemeral" in volume or (volume.get("emptyDir") or {}).get("medium") != "Memory":
        return _directory(places.volumes / name)
    return _directory(places.memory / name)


def _directory(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o777)
    path.chmod(0o777)
    return path


def _host_path(text: str, kind: str) -> Path:
    path = Path(text)
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    checks: Mapping[str, Callable[[Path], bool]] = {
        "Directory": Path.is_dir, "File": Path.is_file, "Socket": Path.is_socket,
        "CharDevice": Path.is_char_device, "BlockDevice": Path.is_block_device, "": Path.exists,
    }  # fmt: skip
    check = checks.get(kind)
    if check is not None and not check(path):
        if kind == "":
            path.mkdir(parents=True, exist_ok=True)
        else:
            raise ConfigError("hostPath", "type", f"hostPath type check failed: {text} is not a {kind}")
    return path.resolve()


def sub_path(root: Path, inner: str) -> Path:
    """The place of a ``subPath`` in a volume, made as a directory when it is missing.

    Raises: ConfigError when it leads out of the volume.
    """
    if not inner:
        return root.resolve()
    base = root.resolve()
    wanted = (base / inner).resolve()
    if base != wanted and base not in wanted.parents:
        raise ConfigError("volumeMounts", "subPath", f"{inner!r} leads out of the volume")
    if not wanted.exists():
        _directory(wanted)
    return wanted


def used(volumes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Volumes by name."""
    return {str(volume["name"]): volume for volume in volumes}
