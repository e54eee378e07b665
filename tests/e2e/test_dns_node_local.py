"""DNS on every node, and answers in the kernel: what pods ask, and what a leaving server loses."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.e2e.clusters import done, netns_of, own_name, running
from tests.e2e.driver import Cluster, eventually, shell_pod

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.dns.wire import DnsMessage
from podwire.kernel import bpf_state, netns

SERVER = ("10.96.0.10", 53)
SRV_NAME = "_dns._udp.kube-dns.kube-system.svc.cluster.local"


@pytest.fixture(scope="module")
def local_dns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a server on each and answers in the kernel, and a pod ``client`` on the first."""
    config = tmp_path_factory.mktemp("dns") / "cluster.yaml"
    config.write_text("nodes: 2\ndns: {kernel: true, nodeLocal: true}\n")
    with running(own_name("dns"), "--config", str(config)) as cluster:
        cluster.apply(shell_pod("client", "sleep 3600").replace("spec:", "spec:\n  nodeName: node-1", 1))
        cluster.ready("client")
        yield cluster
    assert not [folder for folder in bpf_state.folders() if folder.startswith(f"{cluster.name}@")]


def ask(place: Path, name: str, qtype: int = wire.A) -> DnsMessage | None:
    """The reply to one query from a new port; None after 5 s without a reply."""
    with netns.inside(place):
        link = socket.socket(type=socket.SOCK_DGRAM)
    with link:
        link.settimeout(5)
        link.connect(SERVER)
        link.send(wire.encode(DnsMessage(7, wire.RD, encode_name(name), qtype)))
        try:
            return wire.parse_message(link.recv(4096))
        except TimeoutError:
            return None


def counted(place: Path, address: str, metric: str) -> float:
    """The sum of a metric of a component, read from the pod's namespace."""
    with netns.inside(place), urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))


def servers(cluster: Cluster, label: str = "k8s-app=kube-dns") -> dict[str, tuple[str, str]]:
    """Name and address of the DNS pods that are ready, by node."""
    listed = cluster.get("pods", "-n", "kube-system", "-l", label)["items"]
    ready = [
        pod
        for pod in listed
        if "deletionTimestamp" not in pod["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]
    return {pod["spec"]["nodeName"]: (pod["metadata"]["name"], pod["status"]["podIP"]) for pod in ready}


def requests(cluster: Cluster) -> float:
    """The number of queries that the servers of the cluster got."""
    place, metric = netns_of(cluster, "client"), "coredns_dns_requests_total"
    return sum(counted(place, f"{address}:9153", metric) for _, address in servers(cluster).values())


def test_kernel_answers_names_of_the_cluster(local_dns: Cluster) -> None:
    place = netns_of(local_dns, "client")
    metrics = ("exec", "--name", local_dns.name, "node-1", "curl", "-s", "localhost:9440/metrics")
    eventually(lambda: "podwire_dns_kernel_answering 1.0" in done(*metrics))
    before = requests(local_dns)
    for name, rcode in (("kubernetes.default.svc.cluster.local", 0), ("example.com.default.svc.cluster.local", 3)):
        reply = ask(place, name)
        assert reply is not None
        assert reply.rcode == rcode
    assert requests(local_dns) == before, "a server was asked"
    assert not done("state", "node-1", "--name", local_dns.name, "--part", "dns", "--diff").strip()
    why = done("why", "dns", "kubernetes", "--from", "default/client", "--name", local_dns.name)
    assert "answered in the kernel of the pod's node: entry kubernetes.default.svc.cluster.local. with 10.96.0.1" in why


def test_server_of_the_node_hands_over_without_loss(local_dns: Cluster) -> None:
    """The kernel leaves SRV records to servers."""
    place, label = netns_of(local_dns, "client"), "k8s-app=podwire-dns-node"
    first = eventually(lambda: servers(local_dns, label).get("node-1"))

    def led() -> bool:
        before = requests(local_dns)
        assert ask(place, SRV_NAME, wire.SRV) is not None
        return requests(local_dns) == before

    eventually(led)
    before = requests(local_dns)
    for _ in range(50):
        assert ask(place, SRV_NAME, wire.SRV) is not None
    assert requests(local_dns) == before, "a server of the cluster was asked"
    why = done("why", "dns", SRV_NAME, "SRV", "--from", "default/client", "--name", local_dns.name)
    assert "the server of the pod's node answers while it takes queries" in why
    local_dns.kubectl("delete", "pod", first[0], "-n", "kube-system", "--wait=false")
    asked = 0
    while True:
        reply = ask(place, SRV_NAME, wire.SRV)
        assert reply is not None, f"query {asked} is lost"
        assert reply.rcode == wire.NOERROR
        asked += 1
        if asked % 50 == 0 and servers(local_dns, label).get("node-1", first) != first and led():
            break
    assert requests(local_dns) > before, "no server of the cluster took over"
