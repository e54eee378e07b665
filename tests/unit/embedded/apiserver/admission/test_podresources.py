"""What pods ask for in all."""

from typing import Any

import pytest

from podwire.embedded.apiserver.admission.podresources import parse_amount, pod_resources

Object = dict[str, Any]


def container(cpu: str, memory: str = "", **more: Any) -> Object:
    requests = {"cpu": cpu} | ({"memory": memory} if memory else {})
    return {"name": "c", "resources": {"requests": requests}, **more}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container("100m", "1Gi"), container("200m", "512Mi")]}, {"cpu": "300m", "memory": "1536Mi"}),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, {"cpu": "3"}),
        ({"containers": [container("1")], "initContainers": [
            container("1", restartPolicy="Always"), container("2")]}, {"cpu": "3"}),
        ({"containers": [container("1")], "initContainers": [
            container("2"), container("1", restartPolicy="Always")]}, {"cpu": "2"}),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, {"cpu": "1250m"}),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}}, {"cpu": "4"}),
        ({"containers": [{"name": "c"}]}, {}),
    ],
)  # fmt: skip
def test_requests_of_a_pod(spec: Object, expected: dict[str, str]) -> None:
    assert {name: str(amount) for name, amount in pod_resources(spec, "requests").items()} == expected


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [
        ("1Gi", "512Mi", "1536Mi"),
        ("0", "1Gi", "1Gi"),
        ("500m", "500m", "1"),
        ("1Ki", "1", "1025"),
        ("1k", "24", "1024"),
    ],
)
def test_sums_keep_their_suffixes(left: str, right: str, total: str) -> None:
    assert str(parse_amount(left).plus(parse_amount(right))) == total
