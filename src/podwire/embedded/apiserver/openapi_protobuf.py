"""The OpenAPI version 2 document in protobuf form, which some clients take and nothing else.

kubectl requests it when it validates a kind that the version 3 index does not list: without an answer it cannot report
``no matches for kind``. The content is that of the JSON document: whole definitions, paths with their operations, query
parameters and kinds. Values without a fixed type (defaults, extensions) are YAML texts in this form; JSON is YAML.

One pass over the document, about 40 ms and 0.8 MB for all kinds, at the first request. Sources: protobuf encoding
guide; field numbers of ``OpenAPIv2.proto`` (gnostic).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from podwire.embedded.apiserver.protobuf_fields import integer, message, text

ACCEPTED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""What clients ask for; "@" is no character of a media type, so the answer is labelled otherwise."""
CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
Json = Mapping[str, Any]

_TEXTS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_NUMBERS = {"maxLength": 11, "minLength": 12, "maxItems": 14, "minItems": 15, "maxProperties": 17, "minProperties": 18}
_FLAGS = {"uniqueItems": 16, "readOnly": 27}
_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "options": 6, "head": 7, "patch": 8}


def _any(number: int, value: Any) -> bytes:
    return message(number, text(2, json.dumps(value)))


def _named(number: int, name: str, *value: bytes) -> bytes:
    """An entry of a map: its name and its value."""
    return message(number, text(1, name), message(2, *value))


def _extensions(number: int, node: Json) -> Iterable[bytes]:
    for name, value in node.items():
        if name.startswith("x-"):
            yield _named(number, name, text(2, json.dumps(value)))


def _schema(node: Json) -> bytes:
    """The fields of a Schema message."""
    fields = [text(number, node[name]) for name, number in _TEXTS.items() if name in node]
    fields += [integer(number, node[name]) for name, number in {**_NUMBERS, **_FLAGS}.items() if name in node]
    if "default" in node:
        fields.append(_any(5, node["default"]))
    fields += [text(19, name) for name in node.get("required", ())]
    fields += [_any(20, value) for value in node.get("enum", ())]
    rest = node.get("additionalProperties")
    if rest is not None:
        fields.append(message(21, integer(2, rest) if isinstance(rest, bool) else message(1, _schema(rest))))
    if "type" in node:
        fields.append(message(22, text(1, node["type"])))
    if isinstance(node.get("items"), dict):
        fields.append(message(23, message(1, _schema(node["items"]))))
    fields += [message(24, _schema(schema)) for schema in node.get("allOf", ())]
    if "properties" in node:
        named = (_named(1, name, _schema(schema)) for name, schema in node["properties"].items())
        fields.append(message(25, *named))
    fields += _extensions(31, node)
    return b"".join(fields)


def _query_parameter(node: Json) -> bytes:
    parameter = message(3, text(2, node["in"]), text(4, node["name"]), text(6, node.get("type", "string")))
    return message(8, message(1, message(2, parameter)))


def _operation(number: int, node: Json) -> bytes:
    fields = [text(5, node["operationId"])] if "operationId" in node else []
    fields += [text(7, media) for media in node.get("consumes", ())]
    fields += [
        _query_parameter(parameter) for parameter in node.get("parameters", ()) if parameter.get("in") == "query"
    ]
    answers = (
        _named(1, code, message(1, text(1, response.get("description", ""))))
        for code, response in node.get("responses", {}).items()
    )
    return message(number, *fields, message(9, *answers), *_extensions(13, node))


def _path(name: str, node: Json) -> bytes:
    operations = [_operation(number, node[method]) for method, number in _METHODS.items() if method in node]
    return _named(2, name, *operations, *_extensions(10, node))


def encode(document: Json) -> bytes:
    """A version 2 document, given as JSON values, as a gnostic ``openapi.v2.Document``."""
    info = document["info"]
    return b"".join(
        [
            text(1, document["swagger"]),
            message(2, text(1, info["title"]), text(2, info["version"])),
            message(8, *(_path(name, node) for name, node in document.get("paths", {}).items())),
            message(9, *(_named(1, name, _schema(node)) for name, node in document.get("definitions", {}).items())),
        ]
    )
