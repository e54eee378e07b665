"""How fields that no schema knows, and fields that come twice, are answered: refused, warned of, or let pass."""

import json
from collections.abc import Callable
from typing import Any

import pytest

PODS = "/api/v1/namespaces/default/pods"
BODY = (
    b'{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "prots": []}],'
    b' "nodeName": "a", "nodeName": "b"}}'
)
UNKNOWN = 'unknown field "spec.containers[0].prots"'
TWICE = 'duplicate field "spec.nodeName"'


@pytest.mark.parametrize(
    ("query", "status", "warned"),
    [
        ("fieldValidation=Strict", 400, []),
        ("fieldValidation=Warn", 201, [UNKNOWN, TWICE]),
        ("fieldValidation=Ignore", 201, []),
        ("", 201, [UNKNOWN]),
        ("fieldValidation=Maybe", 400, []),
    ],
)
def test_field_validation(play: Callable[..., None], query: str, status: int, warned: list[str]) -> None:
    async def scenario(api: Any) -> None:
        result = await api.raw("POST", f"{PODS}?{query}", BODY, content_type="application/json")
        answer = json.loads(result.body)
        assert result.status == status, answer
        output = [text.removeprefix('299 - "')[:-1].replace('\\"', '"') for _, text in result.headers]
        assert sorted(output) == sorted(warned)
        if query.endswith("Strict"):
            assert answer["reason"] == "BadRequest" and UNKNOWN in answer["message"] and TWICE in answer["message"]
        elif status == 400:
            assert 'Unsupported value: "Maybe"' in answer["message"]
        else:
            assert answer["spec"]["nodeName"] == "b"
            assert "prots" not in answer["spec"]["containers"][0]

    play(scenario)
