"""Any object that fits the types passes through all rules of its kind without a surprise."""

from copy import deepcopy
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podwire.embedded.apiserver.allocate import ServiceAllocator
from podwire.embedded.apiserver.defaults import objects as defaults
from podwire.embedded.apiserver.kinds import KINDS, ResourceKind
from podwire.embedded.apiserver.patch import server_side, strategic
from podwire.embedded.apiserver.patch.server_side import Author
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.schema.data import SchemaNode
from podwire.embedded.apiserver.tables import columns
from podwire.embedded.apiserver.validate import fields, objects
from podwire.errors import ApiError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STORED = sorted({kind.kind: kind for kind in KINDS.values() if kind.has_objects}.items())
TEXTS = ["", "a", "TCP", "10.0.0.1", "10.0.0.0/8", "x/y", "In", "25%", "None", "Always", "http", "*", "A b"]
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(TEXTS),
    "boolean": st.booleans(),
    "integer": st.sampled_from([-1, 0, 1, 80, 70000]),
    "number": st.sampled_from([0, 1.5]),
    "quantity": st.sampled_from(["1", "100m", "1Gi", 2]),
    "int-or-string": st.sampled_from([0, 80, "http", "25%"]),
    "": st.sampled_from([None, 1, {"a": 1}]),
}
BOOLEANS = st.booleans()
FORMATS: dict[str, st.SearchStrategy[Any]] = {
    "date-time": st.just("2026-01-01T00:00:00Z"),
    "byte": st.sampled_from(["", "AAE="]),
}


@cache
def values(schema: SchemaNode, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that the schema's types allow; made once, as hypothesis looks at each strategy that is new to it."""
    if schema.type in SCALARS:
        return FORMATS.get(schema.format, SCALARS[schema.type])
    if schema.type == "array":
        return st.lists(below(schema.items, depth), max_size=2 if depth < 12 else 0)
    if schema.additional is not None:
        return st.dictionaries(st.sampled_from(TEXTS), below(schema.additional, depth), max_size=2)
    return properties(schema, depth)


def below(schema: SchemaNode, depth: int) -> st.SearchStrategy[Any]:
    """Values one level deeper, made when they are needed: schemas may hold themselves."""
    return st.deferred(lambda: values(schema, depth + 1))


@st.composite
def properties(draw: Any, schema: SchemaNode, depth: int) -> Any:
    """An object with some of its properties."""
    out = {}
    names = sorted(schema.properties)
    chosen = draw(names_of(tuple(names))) if names else []
    for name in sorted({*chosen, *(schema.required if draw(BOOLEANS) else ())}):
        if depth < 12 and name != "managedFields":
            out[name] = draw(values(schema.properties[name], depth + 1))
    return out


@cache
def names_of(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Five of the names at most."""
    return st.lists(st.sampled_from(names), max_size=5, unique=True)


def schema_of(kind: ResourceKind) -> SchemaNode:
    result = data.for_kind(kind.group, kind.version, kind.kind)
    assert result is not None
    return result


@pytest.mark.parametrize("kind", [kind for _, kind in STORED], ids=[name for name, _ in STORED])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_object(kind: ResourceKind, draw: st.DataObject) -> None:
    schema = schema_of(kind)
    spec = draw.draw(values(schema), label="object")
    obj = {**spec, "apiVersion": kind.api_version, "kind": kind.kind}
    obj["metadata"] = {**(spec.get("metadata") or {}), "name": "x", "namespace": "d"}
    created = fields.decode(obj, schema, kind)
    assert created.unknown == []
    new = defaults.apply(kind, created.obj)
    assert fields.decode(deepcopy(new), schema, kind).unknown == []
    objects.check(kind, new, None)
    objects.check(kind, new, new)
    columns.render(kind, [new], NOW)
    if kind.kind == "Service":
        try:
            new = ServiceAllocator(("10.96.0.0/16", "fd00::/108")).assign(new)
        except ApiError as failure:
            assert failure.code == 422
    try:
        server_side.track(None, new, schema, Author("m", "t"))
        server_side.apply(deepcopy(new), {**obj, "metadata": {"name": "x"}}, schema, Author("n", "t", force=True))
        assert strategic.apply(new, {"metadata": {"labels": {"a": "b"}}}, schema)["metadata"]["labels"]["a"] == "b"
    except ApiError as failure:
        assert failure.code == 400
