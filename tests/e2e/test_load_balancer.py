"""Services of type LoadBalancer in a cluster: addresses that this machine reaches, and the node that answers."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.e2e.clusters import done, in_node, own_name, running, server, topology
from tests.e2e.driver import Cluster, eventually

NODES = ("node-1", "node-2", "node-3")
CONFIG = """
nodes: 3
podCIDRs: [10.244.0.0/16, "fd00:10:244::/56"]
serviceCIDRs: [10.96.0.0/16, "fd00:10:96::/112"]
"""
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {
        "type": "LoadBalancer",
        "ipFamilyPolicy": "RequireDualStack",
        "selector": {"role": "web"},
        "ports": [{"port": 80}],
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = tmp_path_factory.mktemp("config") / "cluster.yaml"
    config.write_text(CONFIG)
    pods = "".join(server(f"web-{node[-1]}", node, "role: web") for node in NODES)
    with running(own_name("balancer"), "--config", str(config), stdin=pods) as created:
        created.ready("web-1", "web-2", "web-3")
        created.apply(json.dumps(SERVICE))
        eventually(
            lambda: len(addresses(created)) == 2 and all(len(owners(created, a)) == 1 for a in addresses(created))
        )
        yield created


def addresses(cluster: Cluster, name: str = "web") -> list[str]:
    ingress = cluster.get("service", name)["status"].get("loadBalancer", {}).get("ingress", [])
    return [str(entry["ip"]) for entry in ingress]


def owners(cluster: Cluster, address: str) -> list[str]:
    """The nodes whose kernels answer for an address."""
    return [
        node for node in NODES if f" {address}/" in in_node(cluster, node, "ip", "-o", "address", "show", "dev", "eth0")
    ]


def owner(cluster: Cluster, address: str) -> str:
    """The node that answers, once there is one."""
    eventually(lambda: len(owners(cluster, address)) == 1)
    return owners(cluster, address)[0]


def asked(address: str, port: int = 80, patience_s: float = 3.0) -> str:
    """The answer of a server to a request of this machine; empty without any."""
    try:
        with socket.create_connection((address, port), timeout=patience_s) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: client.recv(4096), b"")).decode()
    except OSError:
        return ""


class Requests(threading.Thread):
    """Requests to an address, one after the other; counts those without an answer."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address, self.stop = address, threading.Event()
        self.answers, self.failures = 0, 0

    def run(self) -> None:
        while not self.stop.wait(0.02):
            if asked(self.address, patience_s=20):
                self.answers += 1
            else:
                self.failures += 1

    def __enter__(self) -> "Requests":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()


class Watchman(threading.Thread):
    """Looks at all nodes again and again; remembers the largest number of owners of an address."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._address, self._stop_now = cluster, address, threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self._stop_now.wait(0.02):
            self.most = max(self.most, len(owners(self._cluster, self._address)))

    def __enter__(self) -> "Watchman":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()


def pid_of(cluster: Cluster, name: str) -> int:
    path = Path(topology(cluster).run, "processes", f"{name}.json")
    return int(json.loads(path.read_text())["pid"])


@contextmanager
def cut(cluster: Cluster, node: str) -> Iterator[None]:
    done("lab", "cut", "--name", cluster.name, node)
    try:
        yield
    finally:
        done("lab", "heal", "--name", cluster.name)


def test_this_machine_reaches_a_service_in_both_families(cluster: Cluster) -> None:
    for address in addresses(cluster):
        eventually(lambda address=address: '"pod":"web-' in asked(address))
    events = cluster.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")
    assert "IPAllocated" in events and "nodeAssigned" in events


def statuses(cluster: Cluster, plural: str, field: str) -> dict[str, object]:
    """What the objects of a kind say about the Service ``web``, by node."""
    listed = json.loads(cluster.kubectl("get", plural, "--namespace", "metallb-system", "-o", "json"))
    found = [item.get("status", {}) for item in listed["items"]]
    return {status["node"]: status.get(field) for status in found if status.get("serviceName") == "web"}


def test_the_status_of_a_service_names_the_nodes_that_answer(cluster: Cluster) -> None:
    eventually(
        lambda: (
            statuses(cluster, "servicel2statuses", "interfaces")
            == {owner(cluster, address): [{"name": "eth0"}] for address in addresses(cluster)}
        )
    )


def test_ports_and_addresses_without_a_service_do_not_answer(cluster: Cluster) -> None:
    address = addresses(cluster)[0]
    assert asked(address, 9440, patience_s=0.5) == ""  # The agents' health port, at all addresses of a node.
    free = address.rpartition(".")[0] + ".249"
    began = time.monotonic()
    assert asked(free, patience_s=10) == "" and time.monotonic() - began < 10, "no route, by ARP without an answer"


def test_a_killed_agent_loses_no_request(cluster: Cluster) -> None:
    address = addresses(cluster)[0]
    first = owner(cluster, address)
    with Requests(address) as requests, Watchman(cluster, address) as watchman:
        for _ in range(2):
            old = pid_of(cluster, f"agent-{first}")
            os.kill(old, signal.SIGKILL)
            eventually(lambda old=old: pid_of(cluster, f"agent-{first}") != old)
            answers = requests.answers
            eventually(lambda answers=answers: requests.answers > answers + 50)
    assert (requests.failures, watchman.most, owners(cluster, address)) == (0, 1, [first])


def renewals(cluster: Cluster) -> dict[str, str]:
    """When the agent of each node last renewed its Lease."""
    leases = cluster.get("leases", "-A", "-l", "podwire.io/l2-speaker")["items"]
    return {lease["spec"]["holderIdentity"]: lease["spec"]["renewTime"] for lease in leases}


def test_an_api_server_that_is_away_moves_nothing(cluster: Cluster) -> None:
    """The addresses of both families, which mostly have different nodes."""
    first = {address: owner(cluster, address) for address in addresses(cluster)}
    before = renewals(cluster)
    eventually(lambda: all(renewals(cluster)[node] != before[node] for node in NODES))  # Also by an agent just started.
    server_pid = pid_of(cluster, "apiserver")
    with Requests(next(iter(first))) as requests:
        os.kill(server_pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + 8
            while time.monotonic() < until:
                assert {address: owners(cluster, address) for address in first} == {a: [n] for a, n in first.items()}
        finally:
            os.kill(server_pid, signal.SIGCONT)
        answers = requests.answers
        eventually(lambda: requests.answers > answers + 20)
    assert requests.failures == 0
    assert {address: owners(cluster, address) for address in first} == {a: [n] for a, n in first.items()}


def test_an_address_moves_from_a_node_that_is_cut(cluster: Cluster) -> None:
    address = addresses(cluster)[0]
    first = owner(cluster, address)
    with Watchman(cluster, address) as watchman:
        with cut(cluster, first):
            eventually(lambda: owners(cluster, address) not in ([], [first]))
            assert first not in owners(cluster, address)
        eventually(lambda: owners(cluster, address) == [first])
    assert watchman.most == 1
    eventually(lambda: asked(address) != "")


def test_policy_local_is_answered_by_a_node_with_an_endpoint(cluster: Cluster) -> None:
    address = addresses(cluster)[0]
    cluster.kubectl("patch", "service", "web", "-p", '{"spec": {"externalTrafficPolicy": "Local"}}')
    try:
        for node in NODES:
            cluster.kubectl("label", "pod", *(f"web-{other[-1]}" for other in NODES), "role=none", "--overwrite")
            cluster.kubectl("label", "pod", f"web-{node[-1]}", "role=web", "--overwrite")
            eventually(lambda node=node: owners(cluster, address) == [node])
            eventually(lambda node=node: f'"pod":"web-{node[-1]}"' in asked(address))
        assert f'"client":"{topology(cluster).host_address}"' in asked(address)
    finally:
        cluster.kubectl("label", "pod", *(f"web-{other[-1]}" for other in NODES), "role=web", "--overwrite")
        cluster.kubectl("patch", "service", "web", "-p", '{"spec": {"externalTrafficPolicy": "Cluster"}}')


def test_a_wrong_advertisement_is_refused_by_its_field(cluster: Cluster) -> None:
    patch = '{"spec": {"interfaces": ["a-name-that-is-too-long"]}}'
    cluster.kubectl("patch", "l2advertisement", "fabric", "-n", "metallb-system", "--type", "merge", "-p", patch)
    path = "jsonpath={.items[*].message}"
    eventually(lambda: "spec.interfaces[0]" in cluster.kubectl("get", "events", "-n", "metallb-system", "-o", path))
    assert len(owners(cluster, addresses(cluster)[0])) == 1
    patch = '{"spec": {"interfaces": null}}'
    cluster.kubectl("patch", "l2advertisement", "fabric", "-n", "metallb-system", "--type", "merge", "-p", patch)


def test_limits_are_annotations_of_a_service(cluster: Cluster) -> None:
    address = addresses(cluster)[0]
    first = owner(cluster, address)
    limits = ("podwire.io/max-connections-per-source=2", "podwire.io/syn-proxy=true")
    cluster.kubectl("annotate", "service", "web", *limits)
    table = ("nft", "list", "table", "inet", "podwire-loadbalancer")
    eventually(lambda: "synproxy" in in_node(cluster, first, *table))
    eventually(lambda: asked(address) != "")
    eventually(lambda: two_connections_and_no_third(address))
    metrics = in_node(cluster, first, "curl", "-s", "http://127.0.0.1:9440/metrics")
    for limit in ("count", "syn"):
        line = next(line for line in metrics.splitlines() if f'limit="{limit}",service="default/web"' in line)
        assert float(line.rpartition(" ")[2]) >= 1, line
    cluster.kubectl("annotate", "service", "web", "podwire.io/syn-proxy=perhaps", "--overwrite")
    path = "jsonpath={.items[*].message}"
    eventually(lambda: "'perhaps': expected true or false" in cluster.kubectl("get", "events", "-o", path))
    assert "synproxy" in in_node(cluster, first, *table), "the last good limits stay"
    cluster.kubectl("annotate", "service", "web", *(f"{limit.partition('=')[0]}-" for limit in limits))
    eventually(lambda: "synproxy" not in in_node(cluster, first, *table))
    eventually(lambda: asked(address) != "")


def two_connections_and_no_third(address: str) -> bool:
    """Whether a request is not answered while two connections are open; earlier connections may still count."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection((address, 80), timeout=10))
        return asked(address, patience_s=1.0) == ""


ROUTED = """
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: routed, namespace: metallb-system}
spec: {addresses: [198.18.7.0/28]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: routed, namespace: metallb-system}
spec: {ipAddressPools: [routed], communities: [blue]}
---
apiVersion: metallb.io/v1beta1
kind: Community
metadata: {name: names, namespace: metallb-system}
spec: {communities: [{name: blue, value: "64512:7"}]}
"""
PEER = """
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: router-%(segment)s, namespace: metallb-system}
spec:
  myASN: 64512
  peerASN: 64999
  peerAddress: %(address)s
  connectTime: 1s
  nodeSelectors: [{matchLabels: {topology.kubernetes.io/zone: segment-%(segment)s}}]
"""
ROUTED_SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {metallb.io/address-pool: routed}}
spec: {type: LoadBalancer, selector: {role: web}, ports: [{port: 80}], allocateLoadBalancerNodePorts: false}
"""


@pytest.mark.parametrize("backend", ["vxlan", "bgp"])
def test_a_router_learns_addresses_by_bgp(backend: str) -> None:
    pods = server("web-1", "node-1", "role: web") + server("web-2", "node-2", "role: web")
    arguments = ("--nodes", "2", "--segments", "2", "--backend", backend)
    with running(own_name(f"routed-{backend}"), *arguments, stdin=pods) as cluster:
        cluster.ready("web-1", "web-2")
        segments = topology(cluster).segments
        peers = "".join(PEER % {"segment": s.number, "address": s.router} for s in segments)
        cluster.apply(ROUTED + peers + ROUTED_SERVICE)
        eventually(lambda: addresses(cluster) == ["198.18.7.0"])

        def hops() -> set[str]:
            """The nodes through which the router reaches the address."""
            words = in_node(cluster, "router", "ip", "route", "show", "198.18.7.0").split()
            return {words[number + 1] for number, word in enumerate(words) if word == "via"}

        nodes = {str(node.address) for node in topology(cluster).nodes(2)}
        eventually(lambda: hops() == nodes)
        eventually(lambda: set(statuses(cluster, "servicebgpstatuses", "peers")) == {"node-1", "node-2"})

        def answered() -> str:
            command = ("curl", "-s", "-m", "3", "http://198.18.7.0/")
            return subprocess.run(
                ["nsenter", f"--net={topology(cluster).netns('router')}", *command],
                capture_output=True,
                text=True,
                check=False,
            ).stdout

        eventually(lambda: '"pod":"web-' in answered())
        cluster.kubectl("patch", "service", "web", "-p", '{"spec": {"externalTrafficPolicy": "Local"}}')
        cluster.kubectl("label", "pod", "web-1", "role=none", "--overwrite")
        eventually(lambda: hops() == {str(topology(cluster).node(2).address)})
        eventually(lambda: set(statuses(cluster, "servicebgpstatuses", "peers")) == {"node-2"})
        eventually(lambda: '"pod":"web-2"' in answered())
        agent = pid_of(cluster, "agent-node-2")
        os.kill(agent, signal.SIGKILL)
        eventually(lambda: pid_of(cluster, "agent-node-2") != agent)
        assert '"pod":"web-2"' in answered()
        cluster.kubectl("delete", "service", "web")
        eventually(lambda: hops() == set() and not statuses(cluster, "servicebgpstatuses", "peers"))
