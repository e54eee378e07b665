"""What a pod requests: containers, init containers, sidecars, overhead."""

from typing import Any

import msgspec
import pytest

from podwire.model.pod import Pod
from podwire.model.requests import pod_requests


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


STAYS = {"restartPolicy": "Always"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "sum of containers": ({"containers": [container("1"), container("250m")]}, 1250),
    "limit in place of a request": ({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}, 2000),
    "larger init container": ({"containers": [container("1")], "initContainers": [container("3")]}, 3000),
    "sidecar beside containers": ({"containers": [container("1")], "initContainers": [container("1", **STAYS)]}, 2000),
    "overhead": ({"containers": [container("1")], "overhead": {"cpu": "500m"}}, 1500),
    "what does not parse is left out": ({"containers": [container("many"), container("1")]}, 1000),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_requests_of_a_pod(name: str) -> None:
    spec, expected = CASES[name]
    assert pod_requests(msgspec.convert({"spec": spec}, Pod))["cpu"] == expected
