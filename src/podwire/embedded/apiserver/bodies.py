"""Request bodies in JSON, YAML or protobuf, as plain dictionaries; and YAML answers.

YAML is read without the types that YAML 1.1 has and JSON lacks, so a date stays the text that was typed. Bodies that
are nested more than :data:`DEPTH` levels are refused: the code that reads objects is recursive, the JSON decoder stops
at Python's recursion limit, and libyaml's composer overflows the stack of the process. Kubernetes refuses bodies from
10,000 levels on.
"""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from podwire.embedded.apiserver import failures, protobuf

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_YAML = "application/apply-patch+yaml"

DEPTH = 200
"""Levels of objects and lists that a body may have. The CustomResourceDefinitions of well-known operators have 40."""

_EXPANDED = 400_000
"""The number of values that aliases may expand a short YAML body to, as in Kubernetes' YAML library."""
_UNSTRUCTURED = bytes(set(range(256)) - set(b'{}[]"\\'))
_decode = msgspec.json.Decoder().decode
_TOO_DEEP = f"the body is nested too deeply: more than {DEPTH} levels"


class _Loader(yaml.CSafeLoader):
    """Safe YAML whose dates stay text and whose keys are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """The mapping with keys as JSON would have them.

        Raises: yaml.YAMLError for a key that is no scalar.
        """
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if all(type(key) is str for key in mapping):
            return mapping
        return {_key_text(key, node): value for key, value in mapping.items()}


def _key_text(key: Any, node: yaml.MappingNode) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if not isinstance(key, str | int | float):
        raise yaml.constructor.ConstructorError(None, None, f"a key is {key!r}, not a text", node.start_mark)
    return str(key)


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse_json(body: bytes) -> Any:
    """The value.

    Raises: ApiError 400.
    """
    try:
        decoded = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise failures.bad_request(f"error decoding the body as JSON: {failure}") from failure
    except RecursionError as failure:
        raise failures.bad_request(_TOO_DEEP) from failure
    if not _is_shallow(body):
        for _ in _levels(decoded):
            pass
    return decoded


def _is_shallow(body: bytes) -> bool:
    """Whether a JSON body is certainly not too deep. A quick test: most bodies pass, at a tenth of the full check's
    cost.

    Only brackets and quotes are kept. Each round then removes neighbouring pairs, which removes one or two levels.
    Quotes that remain belong to a string that contains a bracket. The answer for such a body, and for a body with
    escapes, is False.
    """
    brackets = body.translate(None, _UNSTRUCTURED)
    if brackets.count(b"{") + brackets.count(b"[") <= DEPTH:
        return True
    if b"\\" in brackets:
        return False
    brackets = brackets.replace(b'""', b"")
    for _ in range(DEPTH // 2):
        shorter = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return not brackets


def parse_yaml(body: bytes) -> Any:
    """The value of the only document. A body that is JSON, which is YAML, is read as such.

    Raises: ApiError 400, also for values that JSON does not have and for aliases that multiply the body.
    """
    if body.lstrip()[:1] == b"{":
        try:
            _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return parse_json(body)
    try:
        _check_nesting(body)
        decoded = yaml.load(body, _Loader)  # a subclass of the safe loader
    except (yaml.YAMLError, ValueError) as failure:
        raise failures.bad_request(f"error decoding the body as YAML: {failure}") from failure
    size = 0
    for level in _levels(decoded):
        size += len(level)
        if size > max(len(body), _EXPANDED):  # without aliases there are fewer values than bytes
            raise failures.bad_request("error decoding the body as YAML: its aliases repeat too much")
        for value in level:
            if not _is_json(value):
                raise failures.bad_request(f"error decoding the body as YAML: JSON does not have the value {value!r}")
    return decoded


def _check_nesting(body: bytes) -> None:
    """Reads a body's events, which takes no recursion.

    Raises: ApiError 400 when it is nested too deeply; yaml.YAMLError when it is no YAML.
    """
    depth = 0
    for event in yaml.parse(body, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH:
                raise failures.bad_request(_TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def repeated_keys(body: bytes) -> list[str]:
    """The problems with duplicate keys in the mappings of a YAML body; empty for a body that is not YAML."""
    repeated: list[str] = []
    open_nodes: list[tuple[set[str], list[bool]] | None] = []
    """For each mapping its keys, and whether a key is next; None for a sequence."""
    try:
        for event in yaml.parse(body, _Loader):
            if isinstance(event, yaml.CollectionEndEvent):
                open_nodes.pop()
            elif isinstance(event, yaml.NodeEvent):
                inner = open_nodes[-1] if open_nodes else None
                if inner is not None:
                    keys, awaits_key = inner
                    if awaits_key[0] and isinstance(event, yaml.ScalarEvent):
                        if event.value in keys and event.start_mark is not None:
                            repeated.append(f'line {event.start_mark.line + 1}: key "{event.value}" already set in map')
                        keys.add(event.value)
                    awaits_key[0] = not awaits_key[0]
                if isinstance(event, yaml.CollectionStartEvent):
                    open_nodes.append((set(), [True]) if isinstance(event, yaml.MappingStartEvent) else None)
    except yaml.YAMLError:
        return []
    return repeated


def _levels(value: Any) -> Iterator[list[Any]]:
    """The values of an object, level by level.

    Raises: ApiError 400 when there are too many levels.
    """
    level = [value]
    for _ in range(DEPTH + 1):
        yield level
        containers = [item for item in level if type(item) is dict or type(item) is list]
        level = [child for item in containers for child in (item.values() if type(item) is dict else item)]
        if not containers:
            return
    raise failures.bad_request(_TOO_DEEP)


def _is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | dict | list)


def media_type(header: str) -> str:
    """The media type without its parameters, in lower case; JSON when there is none."""
    return header.partition(";")[0].strip().lower() or JSON


def parse_object(header: str, body: bytes) -> dict[str, Any]:
    """The object in a body of ``Content-Type: header``.

    Raises: ApiError 415 for a type that is not taken, 400 for a body that is no object.
    """
    kind = media_type(header)
    if kind == JSON:
        obj = parse_json(body)
    elif kind in (YAML, "application/x-yaml", "text/yaml"):
        obj = parse_yaml(body)
    elif kind == PROTOBUF:
        obj = _parse_protobuf(body)
    else:
        raise failures.unsupported_media_type(f"{JSON}, {YAML}, {PROTOBUF}")
    if not isinstance(obj, dict):
        raise failures.bad_request("the body is not an object")
    return obj


def _parse_protobuf(body: bytes) -> Any:
    try:
        obj = protobuf.decode(body)
    except RecursionError as failure:
        raise failures.bad_request(_TOO_DEEP) from failure
    for _ in _levels(obj):
        pass
    return obj


def render_yaml(body: bytes) -> bytes:
    """A JSON answer as YAML."""
    text: str = yaml.dump(_decode(body), Dumper=yaml.CSafeDumper, default_flow_style=False)
    return text.encode()
