"""Objects and patches that mutations make, as the compiler sees them."""

import pytest

from podwire.embedded.apiserver.cel import published, requests
from podwire.embedded.apiserver.cel.expressions import CompileError, check
from podwire.embedded.apiserver.cel.objects import compile_mutation
from podwire.embedded.apiserver.schema import data

VALUES = {"object": {"n": 2}}


@pytest.mark.parametrize(
    ("patch_type", "source", "want"),
    [
        ("ApplyConfiguration", "Object{spec: Object.spec{n: object.n + 1}}", {"spec": {"n": 3}}),
        ("ApplyConfiguration", "object.n > 2 ? Object{} : Object{a: {'k': ['v']}}", {"a": {"k": ["v"]}}),
        ("ApplyConfiguration", "Object{items: [Object.items{a: 1}, Object.items{b: 'x'}]}",
         {"items": [{"a": 1}, {"b": "x"}]}),
        ("JSONPatch", "[JSONPatch{op: 'add', path: '/a', value: Object.a{b: 1}}]",
         [{"op": "add", "path": "/a", "value": {"b": 1}}]),
        ("JSONPatch", "[1, 2].map(i, JSONPatch{op: 'remove', path: '/' + string(i)})",
         [{"op": "remove", "path": "/1"}, {"op": "remove", "path": "/2"}]),
        ("JSONPatch", "has(object.m) ? [JSONPatch{op: 'remove', path: '/m'}] : []", []),
    ],
)  # fmt: skip
def test_mutation_makes_an_object_or_a_patch(patch_type: str, source: str, want: object) -> None:
    expression = compile_mutation(source, requests.variables(params=False), patch_type)
    assert expression.evaluate(VALUES) == want


@pytest.mark.parametrize(
    ("patch_type", "source", "problem"),
    [
        ("JSONPatch", "[JSONPatch{opp: 'add'}]", "undefined field 'opp'"),
        ("JSONPatch", "[JSONPatch{op: 1}]", "expected type of field 'op' is 'string' but provided type is 'int'"),
        ("JSONPatch", "object.patches", "must evaluate to list(JSONPatch) but got dyn"),
        ("ApplyConfiguration", "Object.spec{}", "must evaluate to Object but got Object_spec"),
        ("ApplyConfiguration", "Other{}", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'Other'"),
        ("ApplyConfiguration", "Object{a: nobody}", "undeclared reference to 'nobody'"),
    ],
)
def test_wrong_mutation_does_not_compile(patch_type: str, source: str, problem: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_mutation(source, requests.variables(params=False), patch_type)
    assert problem in str(caught.value)


def test_published_types_have_the_fields_of_a_kind() -> None:
    node = data.for_kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
    assert node is not None
    types = {"object": published.type_of(node, "CustomResourceDefinition")}
    schema = "object.spec.versions[0].schema.openAPIV3Schema"
    assert check(f"{schema}.maxLength == 1 && {schema}.not.anything", types) == "bool"
    with pytest.raises(CompileError, match="undefined field 'maxLenght'"):
        check(f"{schema}.maxLenght == 1", types)
