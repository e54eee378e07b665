"""The official Python client, in every version from 28 on."""

import time
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward, stream
from tests.e2e.libraries import checks

NAMESPACE = checks.namespace()
NAME = f"official-{time.monotonic_ns()}"
LABEL = f"of={NAME}"

config.load_kube_config()
core: Any = client.CoreV1Api()


def _map(name: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"of": NAME}), data={"a": "1"})


def _names(result: list[Any]) -> list[str]:
    return [item.metadata.name for item in result]


def change_objects() -> None:
    core.create_namespaced_config_map(NAMESPACE, _map(NAME))
    core.patch_namespaced_config_map(NAME, NAMESPACE, {"data": {"b": "2"}})
    read = core.read_namespaced_config_map(NAME, NAMESPACE)
    assert read.data == {"a": "1", "b": "2"}, read.data
    read.data["a"] = "9"
    core.replace_namespaced_config_map(NAME, NAMESPACE, read)
    changes: list[tuple[Any, int | None]] = [
        (lambda: core.replace_namespaced_config_map(NAME, NAMESPACE, read), 409),
        (lambda: core.create_namespaced_config_map(NAMESPACE, _map(NAME)), 409),
        (lambda: core.delete_namespaced_config_map(NAME, NAMESPACE, grace_period_seconds=0), None),
        (lambda: core.read_namespaced_config_map(NAME, NAMESPACE), 404),
    ]
    for change, expected in changes:
        try:
            change()
            status = None
        except ApiException as failure:
            status = failure.status
        assert status == expected, (status, expected)


def list_in_pages() -> None:
    expected = [f"{NAME}-{number}" for number in range(3)]
    for name in expected:
        core.create_namespaced_config_map(NAMESPACE, _map(name))
    page = core.list_namespaced_config_map(NAMESPACE, label_selector=LABEL, limit=2)
    assert _names(page.items) == expected[:2]
    page = core.list_namespaced_config_map(NAMESPACE, label_selector=LABEL, limit=2, _continue=page.metadata._continue)
    assert _names(page.items) == expected[2:]
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector=LABEL)
    assert core.list_namespaced_config_map(NAMESPACE, label_selector=LABEL).items == []


def watch_changes() -> None:
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    core.create_namespaced_config_map(NAMESPACE, _map(NAME))
    core.patch_namespaced_config_map(NAME, NAMESPACE, {"data": {"a": "2"}})
    core.delete_namespaced_config_map(NAME, NAMESPACE)
    looking: Any = watch.Watch()
    events = []
    for event in looking.stream(
        core.list_namespaced_config_map,
        NAMESPACE,
        label_selector=LABEL,
        resource_version=start,
        timeout_seconds=20,
    ):
        events.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            looking.stop()
    assert events == [("ADDED", NAME), ("MODIFIED", NAME), ("DELETED", NAME)], events


def read_log() -> None:
    last = core.read_namespaced_pod_log("box", NAMESPACE, tail_lines=1, timestamps=True)
    when, _, text = last.partition(" ")
    assert text == "second\n" and when.endswith("Z"), last
    looking: Any = watch.Watch()
    lines = []
    for line in looking.stream(core.read_namespaced_pod_log, name="box", namespace=NAMESPACE):
        lines.append(line)
        if line == "second":
            looking.stop()
    assert lines == ["first", "second"], lines


def execute() -> None:
    session = stream(
        core.connect_get_namespaced_pod_exec,
        "box",
        NAMESPACE,
        command=["sh", "-c", "echo out; echo err >&2; exit 3"],
        stdout=True,
        stderr=True,
        stdin=False,
        tty=False,
        _preload_content=False,
    )
    session.run_forever(timeout=20)
    assert (session.read_stdout(), session.read_stderr(), session.returncode) == ("out\n", "err\n", 3)


def execute_with_input() -> None:
    session = stream(
        core.connect_post_namespaced_pod_exec,
        "box",
        NAMESPACE,
        command=["head", "-n1"],
        stdout=True,
        stderr=True,
        stdin=True,
        tty=False,
        _preload_content=False,
    )
    session.write_stdin("a line\nanother line\n")
    session.run_forever(timeout=20)
    assert (session.read_stdout(), session.returncode) == ("a line\n", 0)


def forward_port() -> None:
    forwarded = portforward(core.connect_get_namespaced_pod_portforward, "web", NAMESPACE, ports="80")
    connection = forwarded.socket(80)
    connection.setblocking(True)
    connection.settimeout(20)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
    answer = b""
    while received := connection.recv(65536):
        answer += received
    connection.close()
    assert answer.startswith(b"HTTP/1.1 200 ") and forwarded.error(80) is None, (answer, forwarded.error(80))


checks.run(
    {
        checks.OBJECTS: change_objects,
        checks.LIST: list_in_pages,
        checks.WATCH: watch_changes,
        checks.LOG: read_log,
        checks.EXEC: execute,
        checks.EXEC_INPUT: execute_with_input,
        checks.PORT_FORWARD: forward_port,
    }
)
