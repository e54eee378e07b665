"""Bodies of requests that cannot be read, or that are too deep, are refused with 400."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver import bodies
from podwire.errors import ApiError
from podwire.http.message import Response

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
DEEP = bodies.DEPTH + 1
NINE_TIMES = (b"a%d: &a%d [%s]" % (level, level, b",".join([b"*a%d" % (level - 1)] * 9)) for level in range(1, 9))
BOMB = b"\n".join([b"a0: &a0 [x]", *NINE_TIMES])
JSON_BODIES = {
    "lists": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "beyond recursion": b"[" * 100_000,
    "latin-1": b'{"metadata":{"name":"\xe9"}}',
    "surrogates": b'{"metadata":{"name":"\xed\xa0\x80"}}',
    "half": b'{"metadata":',
    "no object": b"[]",
}
YAML_BODIES = {
    "flow": b"[" * 100_000,
    "block": b"- " * 100_000 + b"a",
    "itself": b"&a [*a]",
    "repeated": BOMB,
    "latin-1": b"a: \xe9",
    "binary": b"a: !!binary aGVsbG8=",
    "set": b"a: !!set {b}",
    "infinite": b"a: .inf",
    "key": b"? [a]\n: b",
    "null key": b"null: b",
    "two documents": b"a: 1\n---\nb: 2",
    **JSON_BODIES,
}
PATCHES = (bodies.JSON_PATCH, bodies.MERGE_PATCH, bodies.STRATEGIC_PATCH)


@pytest.mark.parametrize("name", JSON_BODIES)
def test_bad_json_is_a_bad_request(play: Callable[..., None], name: str) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, {"metadata": {"name": "a"}})
        for method, path, media in [
            ("POST", CONFIGMAPS, bodies.JSON),
            ("PUT", f"{CONFIGMAPS}/a", bodies.JSON),
            ("DELETE", f"{CONFIGMAPS}/a", bodies.JSON),
            *(("PATCH", f"{CONFIGMAPS}/a", media) for media in PATCHES),
        ]:
            answer = await api.raw(method, path, JSON_BODIES[name], content_type=media)
            assert isinstance(answer, Response)
            assert answer.status == (200 if media == bodies.JSON_PATCH and name == "no object" else 400), (
                method,
                media,
            )

    play(scenario)


@pytest.mark.parametrize("name", YAML_BODIES)
def test_bad_yaml_is_a_bad_request(play: Callable[..., None], name: str) -> None:
    async def scenario(api: Any) -> None:
        for method, path, media in (
            ("POST", CONFIGMAPS, bodies.YAML),
            ("PATCH", f"{CONFIGMAPS}/a?fieldManager=x", bodies.APPLY_YAML),
        ):
            answer = await api.raw(method, path, YAML_BODIES[name], content_type=media)
            assert isinstance(answer, Response) and answer.status == 400, (method, answer.body[:300])

    play(scenario)


def test_bodies_of_the_full_depth_are_read() -> None:
    text = b"[" * bodies.DEPTH + b"]" * bodies.DEPTH
    assert bodies.parse_json(text) == bodies.parse_yaml(text)
    with pytest.raises(ApiError, match="more than 200 levels"):
        bodies.parse_json(b"[" + text + b"]")


TEXTS = st.text('{}[]"\\\\ab:,', max_size=6)
VALUES = st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


@given(VALUES, VALUES, st.integers(bodies.DEPTH - 8, bodies.DEPTH + 8), st.booleans())
def test_depth_is_counted_whatever_texts_hold(first: Any, last: Any, levels: int, as_list: bool) -> None:
    value: Any = first
    for _ in range(levels):
        value = [value, last] if as_list else {"}": value, "{": last}
    deepest = max(levels + _depth(first), 0, *((levels + _depth(last),) if levels else ()))
    try:
        assert bodies.parse_json(json.dumps(value).encode()) == value
        accepted = True
    except ApiError:
        accepted = False
    assert accepted is (deepest <= bodies.DEPTH)


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@pytest.mark.parametrize("text", ["{}", '"', "\\", "x"])
def test_many_brackets_side_by_side_are_not_deep(text: str) -> None:
    value = [{"a": [text]} for _ in range(bodies.DEPTH * 2)]
    assert bodies.parse_json(json.dumps(value).encode()) == value


def test_keys_of_yaml_become_text() -> None:
    assert bodies.parse_yaml(b"{2: a, true: b, 1.5: c, d: {3: 4}}") == {
        "2": "a",
        "true": "b",
        "1.5": "c",
        "d": {"3": 4},
    }


def test_anchors_of_yaml_are_followed() -> None:
    assert bodies.parse_yaml(b"x: &x {a: 1}\ny: *x\nz: {<<: *x, b: 2}") == {
        "x": {"a": 1}, "y": {"a": 1}, "z": {"a": 1, "b": 2},
    }  # fmt: skip


def test_keys_that_stand_twice_are_named_with_their_line() -> None:
    body = b"a: 1\nlist:\n  - {b: 1, c: {a: 2}, b: 2}\n  - b: 3\na: 3\n"
    assert bodies.repeated_keys(body) == ['line 3: key "b" already set in map', 'line 5: key "a" already set in map']
    assert bodies.repeated_keys(b"a: [") == []
