"""A Node object through its life: created, patched, updated, its status, deleted."""

import http.client
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.connection import Connection


@pytest.fixture
def path(api: Connection) -> Iterator[str]:
    """The path of a Node that does not exist yet; it goes with the test, since others count the nodes."""
    path = f"/api/v1/nodes/fake-{os.getpid()}"
    yield path
    api.ask("DELETE", path)


def update(api: Connection, path: str) -> Any:
    """The Node after a PUT with one more label; read again when the node controller wrote between GET and PUT."""
    while True:
        now = api.do("GET", path)
        now["metadata"]["labels"]["updated"] = "yes"
        answer = api.ask("PUT", path, now)
        if answer.status != http.client.CONFLICT:
            assert answer.status == http.client.OK, answer.body
            return answer.body


def test_operations_on_a_node(api: Connection, path: str) -> None:
    name = path.rpartition("/")[2]
    body = {
        "metadata": {"name": name, "labels": {"fake": "yes"}},
        "spec": {"unschedulable": True},
        "status": {"phase": "Running", "capacity": {"cpu": "2", "memory": "1Gi"}},
    }
    created = api.do("POST", "/api/v1/nodes", body)
    assert created["status"]["capacity"] == {"cpu": "2", "memory": "1Gi"}
    assert [item["metadata"]["name"] for item in api.do("GET", "/api/v1/nodes", labelSelector="fake=yes")["items"]] == [
        name
    ]
    patched = api.do("PATCH", path, {"metadata": {"labels": {"patched": "yes"}}}, patch="strategic")
    assert {"fake", "patched"} <= patched["metadata"]["labels"].keys()
    capacity = {"status": {"capacity": {"example.com/things": "3"}}}
    assert api.do("PATCH", f"{path}/status", capacity)["status"]["capacity"]["example.com/things"] == "3"
    assert update(api, path)["metadata"]["labels"]["updated"] == "yes"
    api.do("DELETE", "/api/v1/nodes", labelSelector="fake=yes,updated=yes")
    assert api.ask("GET", path).status == 404
