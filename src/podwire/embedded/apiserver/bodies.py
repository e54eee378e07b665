"""Request bodies in JSON, YAML or protobuf, as plain dictionaries; and YAML answers.

YAML is read without the types that YAML 1.1 has and JSON lacks, so that a date stays the text that was typed.
"""

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

_decode = msgspec.json.Decoder().decode


class _Loader(yaml.CSafeLoader):
    """Safe YAML whose dates stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse_json(body: bytes) -> Any:
    """The value.

    Raises: ApiError 400.
    """
    try:
        return _decode(body)
    except msgspec.DecodeError as failure:
        raise failures.bad_request(f"error decoding the body as JSON: {failure}") from failure


def parse_yaml(body: bytes) -> Any:
    """The value of the first document.

    Raises: ApiError 400.
    """
    try:
        return yaml.load(body, _Loader)  # a subclass of the safe loader
    except yaml.YAMLError as failure:
        raise failures.bad_request(f"error decoding the body as YAML: {failure}") from failure


def media_type(header: str) -> str:
    """The media type without its parameters, in lower case; JSON when there is none."""
    return header.partition(";")[0].strip().lower() or JSON


def parse_object(header: str, body: bytes) -> dict[str, Any]:
    """The object in a body of ``Content-Type: header``.

    Raises: ApiError 415 for a type that is not taken, 400 for a body that is no object.
    """
    kind = media_type(header)
    if kind == JSON:
        found = parse_json(body)
    elif kind in (YAML, "application/x-yaml", "text/yaml"):
        found = parse_yaml(body)
    elif kind == PROTOBUF:
        found = protobuf.decode(body)
    else:
        raise failures.unsupported_media_type(f"{JSON}, {YAML}, {PROTOBUF}")
    if not isinstance(found, dict):
        raise failures.bad_request("the body is not an object")
    return found


def render_yaml(body: bytes) -> bytes:
    """A JSON answer as YAML."""
    text: str = yaml.dump(_decode(body), Dumper=yaml.CSafeDumper, default_flow_style=False)
    return text.encode()
