"""Cluster DNS as pods use it: StatefulSet pods, SRV, reverse names and external names."""

import json
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest
from tests.e2e.clusters import done, netns_of, run
from tests.e2e.driver import Cluster, eventually, shell_pod

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.kernel import netns

DATABASE = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "postgres:16", ports: [{name: sql, containerPort: 5432}]}]
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: read}
spec: {selector: {app: db}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: read.%(namespace)s.svc.cluster.local}
"""

# Answers every question for A with 192.0.2.53, and any other with nothing.
WORLD = """
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 53))
print("up", flush=True)
while True:
    q, peer = s.recvfrom(4096)
    end = q.index(0, 12) + 5
    is_a = q[end - 4:end - 2] == b"\\0\\1"
    head = q[:2] + b"\\x81\\x80" + struct.pack("!4H", 1, is_a, 0, 0)
    s.sendto(head + q[12:end] + (b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + bytes([192, 0, 2, 53])) * is_a, peer)
"""


@pytest.fixture
def database(cluster: Cluster, namespace: str) -> str:
    """The namespace of a running StatefulSet and a pod ``client``."""
    cluster.apply(DATABASE % {"namespace": namespace} + "---" + shell_pod("client", "sleep 600"), "-n", namespace)
    cluster.kubectl("rollout", "status", "statefulset/db", "-n", namespace, "--timeout=90s")
    cluster.ready("client", namespace=namespace)
    return namespace


def hosts(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """The output of ``getent hosts`` for a name or address in the pod, as words; empty when there is none."""
    result = cluster.run(["kubectl", "exec", "client", "-n", namespace, "--", "getent", "hosts", name])
    return result.stdout.split()


def address(cluster: Cluster, namespace: str, pod: str) -> str:
    return str(cluster.get("pod", pod, "-n", namespace)["status"]["podIP"])


def test_pods_of_a_stateful_set_have_names_forward_and_reverse(cluster: Cluster, database: str) -> None:
    for pod in ("db-0", "db-1"):
        own = address(cluster, database, pod)
        full = f"{pod}.db.{database}.svc.cluster.local"
        for name in (f"{pod}.db", full):
            eventually(lambda name=name, result=[own, full]: hosts(cluster, database, name) == result)
        eventually(lambda own=own, full=full: hosts(cluster, database, own)[:2] == [own, full])
    # A pod that is made anew keeps its name, which then means its new address.
    before = address(cluster, database, "db-1")
    cluster.kubectl("delete", "pod", "db-1", "-n", database)
    cluster.kubectl("rollout", "status", "statefulset/db", "-n", database, "--timeout=90s")
    own = address(cluster, database, "db-1")
    assert own != before, "addresses rest before they are given again"
    eventually(lambda: hosts(cluster, database, "db-1.db")[:1] == [own])
    eventually(lambda: hosts(cluster, database, before) == [])


def test_services_have_reverse_names_and_aliases(cluster: Cluster, database: str) -> None:
    own = cluster.get("service", "read", "-n", database)["spec"]["clusterIP"]
    full = f"read.{database}.svc.cluster.local"
    eventually(lambda: hosts(cluster, database, own) == [own, full])
    result = eventually(lambda: hosts(cluster, database, "alias"))
    assert result[:2] == [own, full] and f"alias.{database}.svc.cluster.local" in result


def test_srv_records_tell_port_and_host(cluster: Cluster, database: str) -> None:
    server = cluster.get("service", "kube-dns", "-n", "kube-system")["spec"]["clusterIP"]
    name = f"_sql._tcp.db.{database}.svc.cluster.local"
    query = wire.encode(wire.DnsMessage(id=7, flags=wire.RD, name=encode_name(name), qtype=wire.SRV))
    with netns.inside(netns_of(cluster, "client", database)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def answer() -> wire.DnsMessage:
        sock.send(query)
        return wire.parse_message(sock.recv(4096))

    with sock:
        sock.settimeout(20)
        sock.connect((server, 53))
        records = eventually(lambda: result if len(result := answer().answer) == 2 else ())
    hosts_told = sorted(record.names[0] for record in records)
    assert hosts_told == [encode_name(f"db-{n}.db.{database}.svc.cluster.local") for n in (0, 1)]
    assert [record.head[4:6] for record in records] == [(5432).to_bytes(2, "big")] * 2


@pytest.fixture
def world(cluster: Cluster, database: str) -> Iterator[str]:
    """An external name server that cluster DNS forwards to; yields the namespace."""
    server = shell_pod("world", "").replace('command: [sh, -c, ""]', f"command: [python3, -c, {json.dumps(WORLD)}]")
    cluster.apply(server, "-n", database)
    eventually(lambda: "up" in cluster.run(["kubectl", "logs", "world", "-n", database]).stdout)
    before = cluster.get("configmap", "podwire-dns", "-n", "kube-system")["data"]["config.yaml"]
    try:
        configure(cluster, f"{before}upstreams: [{ip_address(address(cluster, database, 'world'))}]\n")
        yield database
    finally:
        configure(cluster, before)


def configure(cluster: Cluster, text: str) -> None:
    """Changes the configuration of cluster DNS and waits until it is in use."""
    patch = json.dumps({"data": {"config.yaml": text}})
    cluster.kubectl("patch", "configmap", "podwire-dns", "-n", "kube-system", "--type=merge", "-p", patch)
    # kubectl refuses to restart twice within a second.
    restart = ["kubectl", "rollout", "restart", "deployment/podwire-dns", "-n", "kube-system"]
    eventually(lambda: cluster.run(restart).returncode == 0)
    cluster.rolled_out("podwire-dns", namespace="kube-system")


def test_only_foreign_names_are_asked_upstream(cluster: Cluster, world: str) -> None:
    eventually(lambda: hosts(cluster, world, "www.example.org")[:1] == ["192.0.2.53"])
    own = cluster.get("service", "read", "-n", world)["spec"]["clusterIP"]
    eventually(lambda: hosts(cluster, world, "read")[:1] == [own])
    assert hosts(cluster, world, "none.svc.cluster.local") == []


def test_why_explains_the_names_that_a_pod_tries(cluster: Cluster, database: str) -> None:
    def steps(*arguments: str) -> list[dict[str, Any]]:
        output = done("why", "dns", *arguments, "--name", cluster.name, "-o", "json")
        return json.loads(output)["steps"]  # type: ignore[no-any-return]

    (found_step,) = steps("read", "--from", f"{database}/client")
    address = cluster.get("service", "read", "-n", database)["spec"]["clusterIP"]
    assert found_step["outcome"] == "answer" and found_step["records"] == [f"A {address}"]
    assert found_step["reason"] == f"Service {database}/read has the address {address}"
    tried = steps("raed", "--from", f"{database}/client")
    assert [step["outcome"] for step in tried] == ["no such name"] * 3 + ["forwarded"]
    assert tried[0]["reason"] == f"there is no Service {database}/raed; namespace {database} has alias, db, read"
    (headless,) = steps(f"db.{database}.svc.cluster.local.")
    assert len(headless["records"]) == 2 and "has 2 ready endpoint addresses" in headless["reason"]
    refused = run("why", "dns", "read", "MX", "--name", cluster.name)
    assert (
        refused.returncode == 2
        and "'MX' is not a record type that podwire knows; expected one of A, " in refused.stderr
    )
    missing = run("why", "dns", "read", "--from", f"{database}/nobody", "--name", cluster.name)
    assert missing.returncode == 2 and f"namespace {database} has no pod nobody" in missing.stderr
