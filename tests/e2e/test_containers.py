"""What a container sees and may do: one pod with a container for each row of a table."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, eventually


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _resource(name: str, resource: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource}}}


def _key(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {f"{kind}KeyRef": {"name": "settings", "key": "data-1"}}}


_PREFIXES = [
    {"prefix": "p-", "configMapRef": {"name": "settings"}},
    {"prefix": "s-", "secretRef": {"name": "settings"}},
    {"configMapRef": {"name": "settings"}},
]
_SIZES = {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1250m", "memory": "64Mi"}}
SEES: dict[str, tuple[dict[str, Any], str]] = {
    # A container, and what it writes; {} fields are facts of the pod.
    "environment": (
        {"command": ["python3", "-c", "import os; print(*(os.environ[n] for n in"
                     " ('M', 'S', 'p-data-1', 's-data-1', 'data-1')))"],
         "env": [_key("M", "configMap"), _key("S", "secret")], "envFrom": _PREFIXES},
        "value-1 value-2 value-1 value-2 value-1",
    ),
    "command": (
        {"command": ["python3", "-c", "import sys; print(*sys.argv[1:])", "$(TEXT)"],
         "args": ["$(TEXT)", "$(NONE)", "$$(TEXT)"], "env": [{"name": "TEXT", "value": "test-value"}]},
        "test-value test-value $(NONE) $(TEXT)",
    ),
    "identity": (
        {"command": ["sh", "-c", 'echo "$NAME $SPACE $IP $HOST $HOSTS $UID_"'],
         "env": [_field("NAME", "metadata.name"), _field("SPACE", "metadata.namespace"), _field("IP", "status.podIP"),
                 _field("HOST", "status.hostIP"), _field("HOSTS", "status.hostIPs"), _field("UID_", "metadata.uid")]},
        "{name} {namespace} {ip} {host} {hosts} {uid}",
    ),
    "resources": (
        {"command": ["sh", "-c", 'echo "$A $B $C $D"'], "resources": _SIZES,
         "env": [_resource("A", "limits.cpu"), _resource("B", "limits.memory"), _resource("C", "requests.cpu"),
                 _resource("D", "requests.memory")]},
        "2 67108864 1 33554432",
    ),
    "hosts": (
        {"command": ["sh", "-c", "grep -c 'foo.*bar' /etc/hosts; head -1 /etc/hosts | cut -c1-10; hostname -i"]},
        "1\n# Kubernet\n{ip}",
    ),
    "sysctl": ({"command": ["cat", "/proc/sys/kernel/shm_rmid_forced"]}, "1"),
}  # fmt: skip
MAY: dict[str, tuple[dict[str, Any], list[str], str]] = {
    # A security context, a command, and what it writes.
    "user of the container": ({"runAsUser": 65534, "runAsGroup": 65533}, ["sh", "-c", "id -u; id -g"], "65534\n65533"),
    "user of the pod": ({}, ["sh", "-c", "id -u; id -g"], "1001\n2002"),
    "unprivileged": (
        {"privileged": False, "runAsUser": 0},
        ["sh", "-c", "ip link add dummy9 type dummy 2>/dev/null || echo refused"], "refused",
    ),
    "no escalation": (
        {"allowPrivilegeEscalation": False, "runAsUser": 1000}, ["grep", "NoNewPrivs", "/proc/self/status"],
        "NoNewPrivs:\t1",
    ),
    "root writable": (
        {"readOnlyRootFilesystem": False}, ["sh", "-c", "touch /tmp/$HOSTNAME && rm /tmp/$HOSTNAME && echo written"],
        "written",
    ),
    "root read-only": (
        {"readOnlyRootFilesystem": True}, ["sh", "-c", "touch /podwire-test 2>/dev/null || echo refused"], "refused",
    ),
}  # fmt: skip


class Ended:
    """The pod after its containers have ended: facts of the pod, and the output of each container."""

    def __init__(self, cluster: Cluster, pod: dict[str, Any]) -> None:
        self._cluster = cluster
        meta, status = pod["metadata"], pod["status"]
        self._where = (meta["name"], "-n", meta["namespace"])
        self.facts = {
            "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"], "ip": status["podIP"],
            "host": status["hostIP"], "hosts": ",".join(item["ip"] for item in status["hostIPs"]),
        }  # fmt: skip

    def output(self, row: str) -> str:
        return self._cluster.kubectl("logs", *self._where, "-c", _name(row)).strip()


def _name(row: str) -> str:
    return row.replace(" ", "-")


@pytest.fixture(scope="module")
def ended(api: Connection, cluster: Cluster) -> Iterator[Ended]:
    """One pod with a container for each row."""
    namespace = f"containers-{os.getpid()}"
    home = f"/api/v1/namespaces/{namespace}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    api.do("POST", f"{home}/configmaps", {"metadata": {"name": "settings"}, "data": {"data-1": "value-1"}})
    api.do("POST", f"{home}/secrets", {"metadata": {"name": "settings"}, "stringData": {"data-1": "value-2"}})
    containers = [{"name": _name(row), "image": "busybox:1.36", **body} for row, (body, _) in SEES.items()]
    containers += [
        {"name": _name(row), "image": "busybox:1.36", "command": command, "securityContext": context}
        for row, (context, command, _) in MAY.items()
    ]
    spec = {
        "restartPolicy": "Never", "containers": containers,
        "hostAliases": [{"ip": "123.45.67.89", "hostnames": ["foo", "bar"]}],
        "securityContext": {"runAsUser": 1001, "runAsGroup": 2002,
                            "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]},
    }  # fmt: skip
    api.do("POST", f"{home}/pods", {"metadata": {"name": "table"}, "spec": spec})
    done = ("Succeeded", "Failed")
    pod = eventually(lambda: (now := api.do("GET", f"{home}/pods/table"))["status"]["phase"] in done and now)
    yield Ended(cluster, pod)
    api.do("DELETE", home)


@pytest.mark.parametrize("row", SEES)
def test_what_a_container_sees(ended: Ended, row: str) -> None:
    assert ended.output(row) == SEES[row][1].format(**ended.facts)


@pytest.mark.parametrize("row", MAY)
def test_what_a_container_may(ended: Ended, row: str) -> None:
    assert ended.output(row) == MAY[row][2]


def test_resources_without_limits_are_those_of_the_node(api: Connection, cluster: Cluster, namespace: str) -> None:
    env = [_resource("CPU", "limits.cpu"), _resource("MEMORY", "limits.memory")]
    container = {"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", 'echo "$CPU $MEMORY"'], "env": env}
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.do("POST", path, {"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never", "containers": [container]}})
    pod = eventually(lambda: (now := api.do("GET", f"{path}/p"))["status"]["phase"] == "Succeeded" and now)
    allocatable = api.do("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}")["status"]["allocatable"]
    cpu, memory = map(int, cluster.kubectl("logs", "p", "-n", namespace).split())
    assert (str(cpu), f"{memory // 1024}Ki") == (allocatable["cpu"], allocatable["memory"])
