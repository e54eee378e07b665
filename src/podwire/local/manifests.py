"""Reads manifests from files, folders and standard input: YAML or JSON, several documents each.

The items of a ``kind: List`` become separate objects. Objects keep the file and line where they start, and the lines of
their fields, so that errors and explanations can name them. JSON is read as YAML, so it has lines too.
Objects that others need come first: namespaces, definitions, accounts and configuration before workloads.

Files that kubectl would read differently are refused: duplicate keys, kustomizations, templates.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import msgspec
import yaml

from podwire.errors import ConfigError
from podwire.model.meta import key_of
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy, NetworkPolicySpec

_FIRST = (
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "IngressClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "NetworkPolicy",
    "Service",
)
_RANKS = {kind: number for number, kind in enumerate(_FIRST)}
_SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"
"""The path that stands for standard input."""
_GENERATORS = {
    "kustomization.yaml": "a kustomization is not built here: give what `kubectl kustomize {}` prints, with -f -",
    "kustomization.yml": "a kustomization is not built here: give what `kubectl kustomize {}` prints, with -f -",
    "Chart.yaml": "a chart is not rendered here: give what `helm template {}` prints, with -f -",
}
"""Files from which a tool makes manifests."""
_CALLED = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
_MERGE, _NULL, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("merge", "null", "str"))
_PLAIN = tuple(f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float"))
_UNRENDERED = "; templates are not rendered here"
_REPEATED = 100_000
"""So many lists and objects may come from aliases."""
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One object and where it was read."""

    file: str
    body: dict[str, Any]
    node: yaml.Node
    """The object as the text has it, with the place of each field."""

    @property
    def source(self) -> str:
        """``file:line`` of the object."""
        return self.at("")

    def at(self, path: str) -> str:
        """``file:line`` of a field, such as ``spec.ingress[0].from[1]`` or ``metadata.labels[app]``.

        For a field that the text does not have, the line of the innermost field around it.
        """
        return _where(self.file, _node_at(self.node, path))

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """``kind namespace/name`` as messages print it."""
        meta = self.body["metadata"]
        place = f"{meta['namespace']}/" if meta.get("namespace") else ""
        return f"{self.kind} {place}{meta.get('name') or meta.get('generateName', '')}"


class ManifestLines:
    """Finds the lines of objects and fields in files; an object without a namespace matches every namespace."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self.manifests = {
            (m.kind, f"{meta.get('namespace', '')}/{meta.get('name', '')}".lstrip("/")): m
            for m in manifests
            for meta in (m.body["metadata"],)
        }

    def find(self, kind: str, key: str) -> Manifest | None:
        """An object by its kind and ``namespace/name``."""
        return self.manifests.get((kind, key)) or self.manifests.get((kind, key.rpartition("/")[2]))

    def line(self, kind: str, key: str, field: str) -> str:
        """``file:line`` of a field; empty when no file has the object."""
        document = self.find(kind, key)
        return document.at(field) if document is not None else ""

    def different(self, policies: Iterable[NetworkPolicy | ClusterNetworkPolicy]) -> Iterator[str]:
        """One sentence for each policy of a cluster that differs from its manifest."""
        for policy in policies:
            kind, key = policy.kind, key_of(policy.metadata)
            document = self.find(kind, key)
            if document is not None and not _same(document.body, policy):
                yield f"{kind} {key} in {document.source} differs from the cluster's object; line numbers may be wrong"


def _same(body: dict[str, Any], policy: NetworkPolicy | ClusterNetworkPolicy) -> bool:
    """Whether a manifest and a policy of the cluster have the same spec; defaults of the API are ignored."""
    try:
        written = msgspec.convert(body, type(policy)).spec
    except msgspec.ValidationError:
        return False
    if isinstance(written, NetworkPolicySpec):
        written = msgspec.structs.replace(written, policy_types=written.types)
    return written == policy.spec


def read_manifests(
    paths: tuple[str, ...], *, recursive: bool = False, foreign: Callable[[str], None] | None = None
) -> tuple[Manifest, ...]:
    """Every object of the files and folders, in the order in which they must be created.

    ``-`` is standard input. With ``recursive``, folders in folders are read too. ``foreign`` gets a sentence for each
    document in a folder that is no manifest; without it such a document is an error, as in a file that is named.

    Raises: ConfigError with file and line of a text that is not a Kubernetes object.
    """
    manifests: list[Manifest] = []
    for path in dict.fromkeys(paths):
        if path == STDIN:
            manifests.extend(parse_manifests(_read_stdin(sys.stdin), "stdin"))
        else:
            manifests.extend(
                manifest
                for file in _files(path, recursive)
                for manifest in parse_manifests(_text(file), file, None if file == path else foreign)
            )
    return in_order(tuple(manifests))


@cache
def _read_stdin(stdin: TextIO) -> str:
    """The text of standard input, which can be read only once."""
    try:
        return stdin.buffer.read().decode()
    except (OSError, ValueError) as failure:
        raise _unreadable("stdin", failure) from failure


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise _unreadable(file, failure) from failure


def _unreadable(source: str, failure: Exception) -> ConfigError:
    return ConfigError(source, "", _why_not(failure))


def _why_not(failure: Exception) -> str:
    if isinstance(failure, UnicodeDecodeError):
        return "is not text in UTF-8"
    return f"cannot be read: {getattr(failure, 'strerror', None) or failure}"


def _files(path: str, recursive: bool) -> list[str]:
    place = Path(path)
    if not place.is_dir():
        if not place.exists():
            raise ConfigError(path, "", "no such file or folder")
        return [path]
    try:
        inside = sorted(place.rglob("*") if recursive else place.iterdir())
    except OSError as failure:
        raise _unreadable(path, failure) from failure
    files = [f for f in inside if f.suffix in _SUFFIXES and (f.is_file() or (f.is_symlink() and not f.exists()))]
    if not files:
        below = "" if recursive or not any(f.is_dir() for f in inside) else ", and folders in it are not read"
        raise ConfigError(path, "", f"no file here ends in {', '.join(_SUFFIXES)}{below}")
    for file in files:
        if file.name in _GENERATORS:
            raise ConfigError(str(file), "", _GENERATORS[file.name].format(file.parent))
    return [str(file) for file in files]


def parse_manifests(text: str, source: str, foreign: Callable[[str], None] | None = None) -> tuple[Manifest, ...]:
    """The objects of one text, in the order written; ``foreign`` as in :func:`read_manifests`.

    Raises: ConfigError.
    """
    manifests: list[Manifest] = []
    loader, keys = yaml.CSafeLoader(text), _DuplicateKeys(source, yaml.CSafeLoader(""))
    try:
        while loader.check_node():
            if node := loader.get_node():
                keys.check(node)
                document = loader.construct_document(node)
                if foreign is not None and _is_foreign(document):
                    foreign(
                        f"{_where(source, node)}: no Kubernetes manifest, which has apiVersion and kind: passed over"
                    )
                    continue
                manifests.extend(_open(document, node, source))
    except yaml.YAMLError as failure:
        mark = getattr(failure, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        rendered = _UNRENDERED if "{{" in text else ""
        problem = getattr(failure, "problem", None) or failure
        raise ConfigError(where, "", f"not YAML: {problem}{rendered}") from failure
    except RecursionError as failure:
        raise ConfigError(source, "", "lists and objects are nested too deep, or contain themselves") from failure
    finally:
        loader.dispose()
    return tuple(manifests)


class _DuplicateKeys:
    """Refuses duplicate keys: some readers use the first of them, others the last.

    Numbers and booleans as keys become their text, as in kubectl. A node that an alias repeats is checked each time, up
    to a limit, because each reader has to expand it too.
    """

    def __init__(self, file: str, loader: yaml.CSafeLoader) -> None:
        self._file = file
        self._loader = loader
        self._known: set[int] = set()
        self._repeated = 0

    def check(self, node: yaml.Node, path: str = "") -> None:
        """Checks a node and the nodes in it.

        Raises: ConfigError; RecursionError for a node that contains itself.
        """
        if isinstance(node, yaml.ScalarNode):
            return
        self._repeated += id(node) in self._known
        self._known.add(id(node))
        if self._repeated > _REPEATED:
            raise ConfigError(_where(self._file, node), path, "aliases repeat too much")
        if isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                self.check(value, f"{path}[{number}]")
            return
        keys: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _NULL:
                rendered = _UNRENDERED if isinstance(key, yaml.MappingNode) else ""
                raise ConfigError(_where(self._file, key), path, f"expected a string as the name of a field{rendered}")
            if key.tag in _PLAIN:
                key.value, key.tag = json.dumps(self._loader.construct_object(key)), _TEXT
            below = f"{path}.{key.value}" if path else str(key.value)
            if key.value in keys and key.tag != _MERGE:
                first = keys[key.value].start_mark.line + 1
                raise ConfigError(_where(self._file, key), below, f"is set twice; the first time in line {first}")
            keys[key.value] = key
            self.check(value, below)


def _is_foreign(document: object) -> bool:
    """Whether a document is meant for another program, such as the values of a chart."""
    if isinstance(document, dict):
        return not document.keys() & {"apiVersion", "kind"}
    return document is not None


def _open(document: object, node: yaml.Node, file: str) -> list[Manifest]:
    if document is None:
        return []
    where = _where(file, node)
    if not isinstance(document, dict):
        called = _CALLED.get(type(document), f"a {type(document).__name__}")
        raise ConfigError(where, "", f"expected an object with apiVersion and kind, found {called}")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str) or not document[field]:
            actual = "nothing" if field not in document else repr(document[field])
            raise ConfigError(where, field, f"expected a text, found {actual}")
    if document["apiVersion"].startswith("kustomize.config.k8s.io/"):
        raise ConfigError(where, "", _GENERATORS["kustomization.yaml"].format(Path(file).parent))
    if str(document["kind"]).endswith("List") and isinstance(document.get("items"), list):
        items = enumerate(document["items"])
        return [inner for number, item in items for inner in _open(item, _node_at(node, f"items[{number}]"), file)]
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not (meta.get("name") or meta.get("generateName")):
        raise ConfigError(where, "metadata.name", "expected a name")
    return [Manifest(file=file, body=document, node=node)]


def _where(file: str, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _node_at(node: yaml.Node, path: str) -> yaml.Node:
    """The node at a path, or the innermost existing node on the way; for a field, the node of its name."""
    current = node
    for step in _STEP.finditer(path):
        inner = _inside(node, step[1] if step[1] is not None else step[2])
        if inner is None:
            break
        current, node = inner
    return current


def _inside(node: yaml.Node, step: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The node where an entry of a map or a list begins, and the entry; of duplicate keys, the last is used."""
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        return node.value[int(step)], node.value[int(step)]
    if isinstance(node, yaml.MappingNode):
        named = [(key, value) for key, value in node.value if key.value == step]
        return named[-1] if named else None
    return None


def rank(manifest: Manifest) -> int:
    """The position in the order of creation: smaller for objects that others need."""
    return _RANKS.get(manifest.kind, len(_RANKS))


def in_order(manifests: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """The objects in the order of creation: objects that others need first, otherwise in their order."""
    return tuple(sorted(manifests, key=rank))
