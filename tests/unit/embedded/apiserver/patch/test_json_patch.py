"""JSON patch (examples of RFC 6902 appendix A) and JSON merge patch (RFC 7386 appendix A)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver.patch import json_patch, merge
from podwire.errors import ApiError, Invalid

PATCHES: list[tuple[Any, Any, Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
    ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["b"]}], {"foo": ["a", ["b"]]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["a", "b"]}, [{"op": "remove", "path": "/foo/0"}], {"foo": ["b"]}),
    ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"thud": "fred"}},
    ),
    ({"foo": [1, 2, 3]}, [{"op": "move", "from": "/foo/0", "path": "/foo/2"}], {"foo": [2, 3, 1]}),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    ({"a/b": 1, "m~n": 2}, [{"op": "test", "path": "/a~1b", "value": 1}], {"a/b": 1, "m~n": 2}),
    ({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": 2}], 2),
]

REFUSED: list[Any] = [
    [{"op": "remove", "path": "/missing"}],
    [{"op": "replace", "path": "/missing", "value": 1}],
    [{"op": "add", "path": "/missing/deeper", "value": 1}],
    [{"op": "add", "path": "/list/9", "value": 1}],
    [{"op": "add", "path": "/list/01", "value": 1}],
    [{"op": "test", "path": "/one", "value": True}],
    [{"op": "test", "path": "/one", "value": 2}],
    [{"op": "move", "from": "/map", "path": "/map/inner"}],
    [{"op": "explode", "path": "/one"}],
    [{"op": "add", "path": "no-slash", "value": 1}],
    [{"op": "add", "path": "/one"}],
    [{"op": "add", "path": "/new", "value": 1}, {"op": "remove", "path": "/missing"}],
]

MERGES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    (["a"], {"a": "b"}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ({"a": "foo"}, None, None),
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("doc", "ops", "want"), PATCHES)
def test_json_patch(doc: Any, ops: Any, want: Any) -> None:
    assert json_patch.apply(doc, ops) == want


@pytest.mark.parametrize("ops", REFUSED)
def test_a_failing_operation_changes_nothing(ops: Any) -> None:
    doc = {"one": 1, "list": [1], "map": {}}
    with pytest.raises(Invalid) as caught:
        json_patch.apply(doc, ops)
    assert caught.value.code == 422
    assert doc == {"one": 1, "list": [1], "map": {}}


@pytest.mark.parametrize("ops", [{}, None, ["add"], [1]])
def test_bodies_that_are_no_patch(ops: Any) -> None:
    with pytest.raises(ApiError) as caught:
        json_patch.apply({}, ops)
    assert caught.value.code == 400


@pytest.mark.parametrize(("doc", "patch", "want"), MERGES)
def test_merge_patch(doc: Any, patch: Any, want: Any) -> None:
    assert merge.apply(doc, patch) == want


def escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def edits(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """A patch that turns one document into the other."""
    if isinstance(old, dict) and isinstance(new, dict):
        out = [{"op": "remove", "path": f"{path}/{escape(key)}"} for key in old.keys() - new.keys()]
        for key, value in new.items():
            if key in old:
                out += edits(old[key], value, f"{path}/{escape(key)}")
            else:
                out.append({"op": "add", "path": f"{path}/{escape(key)}", "value": value})
        return out
    return [{"op": "replace", "path": path, "value": new}]


@given(JSON, JSON)
def test_difference_of_two_documents_patches_one_into_the_other(old: Any, new: Any) -> None:
    assert json_patch.apply(old, edits(old, new)) == new


@given(JSON, JSON)
def test_a_merge_applied_twice_is_applied_once(doc: Any, patch: Any) -> None:
    once = merge.apply(doc, patch)
    if isinstance(patch, dict):
        assert merge.apply(once, patch) == once
