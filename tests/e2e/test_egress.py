"""An EgressPolicy in a cluster: the source that this machine sees, the move to another node, and what is left."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.clusters import in_node, netns_of, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually

from podwire.kernel import netns
from podwire.routing.egress.holder import choose_node

PORT = 7399
NODES = ("node-1", "node-2", "node-3")

DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: []}
"""


def policy(address: str, **spec: object) -> str:
    body = {
        "apiVersion": "podwire.io/v1alpha1",
        "kind": "EgressPolicy",
        "metadata": {"name": "partner"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "nodeSelector": {"matchLabels": {"egress": "yes"}},
            "egressIPs": [address],
        }
        | spec,
    }
    return json.dumps(body)


class SourceServer(threading.Thread):
    """A server of this machine, outside the cluster, that answers with the client's address."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server((address, PORT))
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, peer = self._server.accept()
            except OSError:
                return
            with client:
                client.sendall(peer[0].encode())

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.join()


def source_seen(place: Path, address: str, patience_s: float = 1.0) -> str:
    """The source that the server sees; empty when no connection is made."""
    with netns.inside(place):
        client = socket.socket()
    with client:
        client.settimeout(patience_s)
        try:
            client.connect((address, PORT))
            return client.recv(100).decode()
        except OSError:
            return ""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pods = server("web", "node-1") + server("other", "node-1")
    with running(own_name("egress"), "--nodes", "3", stdin=pods) as created:
        created.ready("web", "other")
        created.kubectl("label", "nodes", "node-2", "node-3", "egress=yes")
        yield created


@contextmanager
def stopped(cluster: Cluster, node: str) -> Iterator[None]:
    """A node whose processes hang and whose link is down."""
    folder = Path(topology(cluster).run, "processes")
    pids = [int(json.loads((folder / f"{part}-{node}.json").read_text())["pid"]) for part in ("agent", "kubelet")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    in_node(cluster, node, "ip", "link", "set", "eth0", "down")
    try:
        yield
    finally:
        in_node(cluster, node, "ip", "link", "set", "eth0", "up")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def holder(cluster: Cluster) -> str:
    return str((cluster.get("egresspolicy", "partner").get("status") or {}).get("node", ""))


def condition(cluster: Cluster) -> tuple[str, str]:
    conditions = (cluster.get("egresspolicy", "partner").get("status") or {}).get("conditions") or [{}]
    return conditions[0].get("reason", ""), conditions[0].get("message", "")


def leftovers(cluster: Cluster, address: str) -> list[str]:
    """What nodes hold of EgressPolicies."""
    result = []
    for node in NODES:
        tables = in_node(cluster, node, "nft", "list", "tables")
        rules = in_node(cluster, node, "ip", "rule") + in_node(cluster, node, "ip", "-4", "address")
        result += [node] if "podwire-egress" in tables or "fwmark" in rules or address in rules else []
    return result


def test_pods_leave_with_the_address_of_their_policy(cluster: Cluster) -> None:
    outside = str(topology(cluster).host_address)
    address = outside.rpartition(".")[0] + ".200"
    web, other = netns_of(cluster, "web"), netns_of(cluster, "other")
    receiver = SourceServer(outside)
    try:
        node_address = source_seen(web, outside, 20)
        assert node_address and node_address != address
        cluster.apply(policy(address))
        eventually(lambda: source_seen(web, outside) == address)
        first = choose_node("partner", NODES[1:])
        eventually(lambda: condition(cluster) == ("Assigned", f"node {first} has {address}"))
        assert holder(cluster) == first and source_seen(other, outside, 20) == node_address

        reported = run("why", "--name", cluster.name, "default/web", f"{outside}:{PORT}").stdout
        assert f"EgressPolicy partner: through node {first}, which has {address}" in reported, reported
        cluster.apply(DENY)
        eventually(lambda: not source_seen(web, outside, 0.5))
        cluster.apply(DENY.replace("egress: []", f"egress: [{{to: [{{ipBlock: {{cidr: {outside}/32}}}}]}}]"))
        eventually(lambda: source_seen(web, outside) == address)
        cluster.kubectl("delete", "networkpolicy", "web")

        began = time.monotonic()
        with stopped(cluster, first):
            eventually(lambda: source_seen(web, outside) == address)
            took_s = time.monotonic() - began
            second = eventually(lambda: holder(cluster) if holder(cluster) != first else "")
            print(f"the address moved from {first} to {second} in {took_s:.1f} s")
            assert {first, second} == {"node-2", "node-3"} and took_s < 10, "5 s, and what others use of the processor"
        eventually(lambda: holder(cluster) == first)
        eventually(lambda: source_seen(web, outside) == address)

        cluster.apply(policy("10.89.0.300"))
        reason, message = eventually(lambda: condition(cluster) if condition(cluster)[0] == "Invalid" else None)
        assert reason == "Invalid" and "spec.egressIPs[0]" in message and "last good form" in message
        assert source_seen(web, outside, 20) == address
        eventually(lambda: "spec.egressIPs[0]" in cluster.kubectl("get", "events", "-A"))

        cluster.apply(policy(address, nodeSelector={"matchLabels": {"egress": "none"}}))
        eventually(lambda: condition(cluster)[0] == "NoEgressNode")
        eventually(lambda: not source_seen(web, outside, 0.5))
        assert "no node has the address" in in_node(cluster, "node-1", "nft", "list", "table", "inet", "podwire-egress")

        cluster.kubectl("delete", "egresspolicy", "partner")
        eventually(lambda: source_seen(web, outside) == node_address)
        eventually(lambda: not leftovers(cluster, address))
        eventually(lambda: "podwire-egress" not in cluster.kubectl("get", "leases", "-n", "kube-system"))
    finally:
        receiver.close()
