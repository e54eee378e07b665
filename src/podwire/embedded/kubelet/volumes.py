"""The files of a pod's volumes: the content of each volume (pure), and the directories that hold the content.

A volume made of API objects (configMap, secret, downwardAPI, projected) is a directory with a link ``..data`` to a
directory named by a time stamp. An update writes a new directory and replaces the link by rename, so a reader sees all
old files or all new files. These volumes lie below the kubelet's run directory: where that is a tmpfs, as /run is,
tokens and secrets are never written to a disk.

emptyDir is a directory of the pod. hostPath is the path on the machine. A claim becomes the path of its volume before
it comes here (``claims``). Every other kind of volume is an empty directory.
"""

import base64
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.kubelet.environment import ConfigLookup, PodFields, field, resource
from podwire.errors import ConfigError

_DATA = "..data"


class File(msgspec.Struct, frozen=True):
    """One file of a volume; ``mode`` holds the permission bits."""

    content: bytes
    mode: int = 0o644


Files = dict[str, File]


class TokenRequest(msgspec.Struct, frozen=True):
    """A service account token that a volume projects; an empty ``audience`` means the API server's own audience."""

    audience: str = ""
    life_s: int = 3600


class VolumeTokens(msgspec.Struct, frozen=True):
    """The service account tokens of one pod, and the certificate authority of the cluster (PEM)."""

    by_request: Mapping[TokenRequest, str] = {}
    ca: bytes = b""


class Content(msgspec.Struct, frozen=True):
    """The sources of a volume's content: pod fields, ConfigMaps and Secrets, tokens."""

    facts: Any
    objects: Any
    tokens: VolumeTokens = VolumeTokens()


def token_requests(volume: Mapping[str, Any]) -> tuple[TokenRequest, ...]:
    """The tokens that a volume projects."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    return tuple(_token_request(s["serviceAccountToken"]) for s in sources if s.get("serviceAccountToken"))


def _token_request(projection: Mapping[str, Any]) -> TokenRequest:
    return TokenRequest(
        str(projection.get("audience") or ""), int(projection.get("expirationSeconds") or TokenRequest().life_s)
    )


def object_kinds(volume: Mapping[str, Any]) -> bool:
    """Whether a volume's content is made of API objects, so that it changes when they change."""
    return any(kind in volume for kind in ("configMap", "secret", "downwardAPI", "projected"))


def compile_files(volume: Mapping[str, Any], content: Content) -> Files:
    """The files of a volume made of API objects, by relative path.

    Raises: ConfigError naming the object or key that is missing.
    """
    if definition := volume.get("configMap"):
        return _config_map(definition, content, _mode(definition))
    if definition := volume.get("secret"):
        return _secret({**definition, "name": definition.get("secretName", "")}, content, _mode(definition))
    if definition := volume.get("downwardAPI"):
        return _downward(definition, content, _mode(definition))
    definition = volume.get("projected") or {}
    files: Files = {}
    for source in definition.get("sources") or ():
        files |= _projection(source, content, _mode(definition))
    return files


def _mode(definition: Mapping[str, Any]) -> int:
    mode = definition.get("defaultMode")
    return 0o644 if mode is None else int(mode)


def _projection(source: Mapping[str, Any], content: Content, mode: int) -> Files:
    if definition := source.get("configMap"):
        return _config_map(definition, content, mode)
    if definition := source.get("secret"):
        return _secret(definition, content, mode)
    if definition := source.get("downwardAPI"):
        return _downward(definition, content, mode)
    if definition := source.get("serviceAccountToken"):
        token = content.tokens.by_request[_token_request(definition)]
        return {_safe(definition.get("path", "token")): File(token.encode(), mode)}
    return {}


def _config_map(definition: Mapping[str, Any], content: Content, mode: int) -> Files:
    objects: ConfigLookup = content.objects
    facts: PodFields = content.facts
    name = str(definition.get("name", ""))
    if name == "kube-root-ca.crt" and content.tokens.ca:
        data: Mapping[str, bytes] | None = {"ca.crt": content.tokens.ca}
    else:
        data = objects.config_map(facts.pod.metadata.namespace, name)
    return _select(definition, data, f'configmap "{name}"', mode)


def _secret(definition: Mapping[str, Any], content: Content, mode: int) -> Files:
    objects: ConfigLookup = content.objects
    facts: PodFields = content.facts
    name = str(definition.get("name", ""))
    return _select(definition, objects.secret(facts.pod.metadata.namespace, name), f'secret "{name}"', mode)


def _select(definition: Mapping[str, Any], data: Mapping[str, bytes] | None, subject: str, mode: int) -> Files:
    optional = bool(definition.get("optional"))
    if data is None:
        if optional:
            return {}
        raise ConfigError(subject, "", f"{subject} not found")
    items = definition.get("items")
    if not items:
        return {_safe(key): File(value, mode) for key, value in data.items()}
    files: Files = {}
    for item in items:
        key = item.get("key", "")
        if key in data:
            files[_safe(item.get("path", key))] = File(data[key], int(item.get("mode") or mode))
        elif not optional:
            raise ConfigError(subject, "", f"{subject} references non-existent key: {key}")
    return files


def _downward(definition: Mapping[str, Any], content: Content, mode: int) -> Files:
    facts: PodFields = content.facts
    files: Files = {}
    for item in definition.get("items") or ():
        if reference := item.get("fieldRef"):
            text = field(reference.get("fieldPath", ""), facts)
        else:
            text = resource(item.get("resourceFieldRef") or {}, facts, facts.pod.spec.containers[0])
        files[_safe(item.get("path", ""))] = File(text.encode(), int(item.get("mode") or mode))
    return files


def _safe(path: str) -> str:
    segments = path.split("/")
    if not path or path.startswith("/") or ".." in segments or segments[0].startswith(".."):
        raise ConfigError("volume", "path", f"{path!r} is not a relative path without ..")
    return path


def config_map_data(document: Mapping[str, Any]) -> dict[str, bytes]:
    """The keys of a ConfigMap.

    Raises: ConfigError naming the object and the field that is no text, or no base64.
    """
    text = {key: value.encode() for key, value in _texts(document, "ConfigMap", "data")}
    return text | _decoded(document, "ConfigMap", "binaryData")


def secret_data(document: Mapping[str, Any]) -> dict[str, bytes]:
    """The keys of a Secret, decoded.

    Raises: ConfigError naming the object and the field that is no text, or no base64.
    """
    return _decoded(document, "Secret", "data")


def _decoded(document: Mapping[str, Any], kind: str, field: str) -> dict[str, bytes]:
    decoded = {}
    for key, value in _texts(document, kind, field):
        try:
            decoded[key] = base64.b64decode(value)
        except ValueError as failure:
            raise ConfigError(_noun(document, kind), f"{field}[{key}]", f"expected base64: {failure}") from failure
    return decoded


def _texts(document: Mapping[str, Any], kind: str, field: str) -> Iterator[tuple[str, str]]:
    values = document.get(field) or {}
    if not isinstance(values, Mapping):
        raise ConfigError(_noun(document, kind), field, "expected a map of texts")
    for key, value in values.items():
        if not isinstance(value, str):
            raise ConfigError(_noun(document, kind), f"{field}[{key}]", "expected a text")
        yield key, value


def _noun(document: Mapping[str, Any], kind: str) -> str:
    meta = document.get("metadata") or {}
    return f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"


def write_files(directory: Path, files: Files, stamp: str) -> bool:
    """Makes ``directory`` hold exactly ``files``; returns whether files were written.

    ``stamp`` is the name of the new content's directory.
    """
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
    current = {str(path.relative_to(link)): path for path in link.rglob("*") if path.is_file()}
    return current.keys() == files.keys() and all(current[n].read_bytes() == file.content for n, file in files.items())


def _link_names(directory: Path, names: set[str]) -> None:
    for entry in directory.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    for name in names:
        visible = directory / name
        if not visible.is_symlink():
            visible.symlink_to(f"{_DATA}/{name}")


class VolumeRoots(msgspec.Struct, frozen=True):
    """The directories that hold one pod's volumes and its volumes in memory.

    ``node`` has directories of the node by the paths that they stand for: the nodes of a local cluster share a machine,
    but each has its own ``/etc/cni/net.d``.
    """

    volumes: Path
    memory: Path
    node: Mapping[str, str] = {}

    def host_path(self, path: str) -> str:
        """The path on the machine that a ``hostPath`` of this node means."""
        for directory, own in self.node.items():
            if path == directory or path.startswith(directory + "/"):
                return own + path.removeprefix(directory)
        return path


def prepare(volume: Mapping[str, Any], roots: VolumeRoots) -> Path:
    """The directory or file of a volume, created when it is missing and may be created; content is not written yet.

    Raises: ConfigError when a hostPath does not have its ``type``.
    """
    name = str(volume["name"])
    if definition := volume.get("hostPath"):
        return _host_path(roots.host_path(str(definition.get("path", "/"))), str(definition.get("type") or ""))
    if (volume.get("emptyDir") or {}).get("medium") != "Memory":
        return _directory(roots.volumes / name)
    return _directory(roots.memory / name)


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
    """The path of a ``subPath`` in a volume; a directory is created when the path is missing.

    Raises: ConfigError when the path leads out of the volume.
    """
    if not inner:
        return root.resolve()
    base = root.resolve()
    target = (base / inner).resolve()
    if base != target and base not in target.parents:
        raise ConfigError("volumeMounts", "subPath", f"{inner!r} leads out of the volume; expected a path inside")
    if not target.exists():
        _directory(target)
    return target


def used(volumes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Volumes by name."""
    return {str(volume["name"]): volume for volume in volumes}
