"""The required shape of definitions and paths in foreign OpenAPI documents of version 2.

Only the fields that this server reads are described; other fields may have any value. Source: OpenAPI 2.0.
"""

from typing import Any

import msgspec


class _SchemaShape(msgspec.Struct, rename="camel"):
    ref: str = msgspec.field(default="", name="$ref")
    format: str = ""
    title: str = ""
    description: str = ""
    pattern: str = ""
    type: str = ""
    max_length: int = 0
    min_length: int = 0
    max_items: int = 0
    min_items: int = 0
    max_properties: int = 0
    min_properties: int = 0
    unique_items: bool = False
    read_only: bool = False
    required: list[str] = []
    enum: list[Any] = []
    all_of: list["_SchemaShape"] = []
    items: "_SchemaShape | None" = None
    additional_properties: "bool | _SchemaShape" = True
    properties: dict[str, "_SchemaShape"] = {}


class _ParameterShape(msgspec.Struct):
    name: str
    place: str = msgspec.field(name="in")
    type: str = "string"
    schema: _SchemaShape | None = None


class _ResponseShape(msgspec.Struct):
    description: str = ""
    schema: _SchemaShape | None = None
    headers: dict[str, dict[str, Any]] = {}


class _OperationShape(msgspec.Struct, rename="camel"):
    operation_id: str = ""
    consumes: list[str] = []
    produces: list[str] = []
    parameters: list[_ParameterShape] = []
    responses: dict[str, _ResponseShape] = {}


class _PathShape(msgspec.Struct):
    get: _OperationShape | None = None
    put: _OperationShape | None = None
    post: _OperationShape | None = None
    delete: _OperationShape | None = None
    options: _OperationShape | None = None
    head: _OperationShape | None = None
    patch: _OperationShape | None = None
    parameters: list[_ParameterShape] = []


def is_definition(body: Any) -> bool:
    """Whether it is a schema."""
    return _fits(body, _SchemaShape)


def is_path(body: Any) -> bool:
    """Whether it holds operations by method, without references to parameters."""
    return _fits(body, _PathShape) and None not in body.values()


def _fits(body: Any, shape: type) -> bool:
    try:
        msgspec.convert(body, shape)
    except msgspec.ValidationError:
        return False
    return True
