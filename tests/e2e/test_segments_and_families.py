"""Four nodes on two routed segments, with addresses of both families."""

import json
import socket
import time
from collections.abc import Iterator

import pytest
from tests.e2e.clusters import address_of, done, flows, in_node, netns_of, own_name, run, running, server
from tests.e2e.driver import Cluster, eventually, shell_pod
from tests.kernel.datagram_stream import Stream
from tests.kernel.routing_nodes import Pod

from podwire.kernel import netns
from podwire.kernel.features import Features

NAME = own_name("segments")
CONFIG = """
nodes: 4
segments: 2
podCIDRs: [10.244.0.0/16, "fd44::/48"]
serviceCIDRs: [10.96.0.0/16, "fd96::/112"]
"""
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {tier: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: each}
spec: {clusterIP: None, ipFamilyPolicy: RequireDualStack, selector: {tier: web}, ports: [{port: 80}]}
"""
NO_BIRD = Features().lacks("bird")
OTHERS = ("on-2", "on-3", "on-4")
PODS = {"on-1", *OTHERS}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server on each node; node-1 and node-3 are on one segment, node-2 and node-4 on the other."""
    config = tmp_path_factory.mktemp("config") / "cluster.yaml"
    config.write_text(CONFIG)
    servers = "".join(server(f"on-{n}", f"node-{n}", "tier: web") for n in range(1, 5))
    client = shell_pod("client", "sleep 600")
    with running(NAME, "--config", str(config), stdin=f"{servers}{SERVICE}---{client}") as cluster:
        for address in cluster.get("service", "both")["spec"]["clusterIPs"]:
            eventually(lambda address=address: {answer(cluster, "on-1", address).get("pod") for _ in range(20)} == PODS)
        yield cluster


def answer(cluster: Cluster, source: str, address: str, port: int = 80) -> dict[str, str]:
    """The answer of the stand-in server at an address to a pod, or to this machine; empty without an answer."""
    with netns.inside(netns_of(cluster, source) if source else None):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with sock:
        sock.settimeout(20)
        try:
            sock.connect((address, port))
            sock.sendall(b"podwire-probe\n")
            return dict(json.loads(sock.makefile().readline()))
        except (OSError, ValueError):
            return {}


def setting(cluster: Cluster, key: str, text: str) -> None:
    patch = json.dumps({"data": {key: text}})
    cluster.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)


def route_of(cluster: Cluster, peer: str) -> str:
    """The route of node-1 to the pods of a peer."""
    cidr = cluster.get("node", peer)["spec"]["podCIDR"]
    return in_node(cluster, "node-1", "ip", "route", "show", cidr)


def test_nodes_and_pods_have_an_address_of_each_family(wide: Cluster) -> None:
    for node in wide.get("nodes")["items"]:
        results = [a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"]
        assert [":" in address for address in results] == [False, True]
        assert [":" in cidr for cidr in node["spec"]["podCIDRs"]] == [False, True]
    for pod in wide.get("pods")["items"]:
        assert [":" in item["ip"] for item in pod["status"]["podIPs"]] == [False, True]
        assert [":" in item["ip"] for item in pod["status"]["hostIPs"]] == [False, True]


@pytest.mark.parametrize("version", [4, 6])
def test_pods_reach_every_node_with_their_own_source_address(wide: Cluster, version: int) -> None:
    for name in OTHERS:
        output = answer(wide, "on-1", address_of(wide, name, version))
        assert (output["pod"], output["client"]) == (name, address_of(wide, "on-1", version))


def test_a_service_answers_on_both_of_its_addresses(wide: Cluster) -> None:
    addresses = wide.get("service", "both")["spec"]["clusterIPs"]
    assert [":" in address for address in addresses] == [False, True]
    for address in addresses:
        observed = {answer(wide, "on-1", address)["pod"] for _ in range(40)}
        assert observed == PODS


def test_a_node_port_answers_on_every_address_of_every_node(wide: Cluster) -> None:
    port = wide.get("service", "both")["spec"]["ports"][0]["nodePort"]
    for node in wide.get("nodes")["items"]:
        for item in node["status"]["addresses"]:
            if item["type"] == "InternalIP":
                address = str(item["address"])
                assert eventually(lambda address=address: answer(wide, "", address, port))["pod"] in PODS, item


def test_dns_answers_with_both_families(wide: Cluster) -> None:
    def resolve(family: str, name: str) -> list[str]:
        result = wide.run(["kubectl", "exec", "client", "--", "getent", family, name])
        return sorted({line.split()[0] for line in result.stdout.splitlines()})

    v4, v6 = wide.get("service", "both")["spec"]["clusterIPs"]
    eventually(lambda: (resolve("ahostsv4", "both"), resolve("ahostsv6", "both")) == ([v4], [v6]))
    for family, version in (("ahostsv4", 4), ("ahostsv6", 6)):
        expected = sorted(address_of(wide, name, version) for name in ("on-1", *OTHERS))
        eventually(lambda family=family, desired=expected: resolve(family, "each") == desired)


def test_the_probe_is_green(wide: Cluster) -> None:
    done("probe", "--name", NAME)
    done("probe", "--name", NAME, "--to", "svc/both", "--to", "svc/each", "--from", "app!=x")
    done("probe", "--name", NAME, "--from", "host", "--to", "svc/both")


def test_direct_routing_uses_the_tunnel_between_segments_only(wide: Cluster) -> None:
    assert all("dev podwire-vxlan" in route_of(wide, peer) for peer in ("node-2", "node-3", "node-4"))
    with flows(wide, [("on-1", "on-2"), ("on-1", "on-3")]) as both:
        setting(wide, "routing.directRouting", "true")
        eventually(lambda: "dev eth0" in route_of(wide, "node-3"))
        assert "dev podwire-vxlan" in route_of(wide, "node-2")
        done("probe", "--name", NAME)
        for backend in ("udp", "vxlan"):
            setting(wide, "routing.backend", backend)
            eventually(lambda backend=backend: f"dev podwire-{backend}" in route_of(wide, "node-2"))
            assert "dev eth0" in route_of(wide, "node-3")
        setting(wide, "routing.directRouting", "false")
        eventually(lambda: "dev podwire-vxlan" in route_of(wide, "node-3"))
    assert [flow.problems for flow in both] == [[], []]


@pytest.mark.skipif(bool(NO_BIRD), reason=NO_BIRD)
def test_a_change_to_bgp_behind_a_router_loses_no_packet(wide: Cluster) -> None:
    """Packets take the former backend until BIRD has written the routes to nodes of the other segment."""
    near, far = (Pod(netns_of(wide, name), address_of(wide, name)) for name in ("on-1", "on-2"))
    cidrs = {node: wide.get("node", node)["spec"]["podCIDR"] for node in ("node-1", "node-2")}

    def changed(device: str) -> bool:
        pairs = (("node-1", "node-2"), ("node-2", "node-1"))
        routes = [in_node(wide, node, "ip", "route", "show", cidrs[peer]).splitlines() for node, peer in pairs]
        return all(len(result) == 1 and f"dev {device} " in result[0] for result in routes)

    losses = []
    for backend, device in (("bgp", "eth0"), ("udp", "podwire-udp"), ("bgp", "eth0"), ("vxlan", "podwire-vxlan")):
        streams = [Stream(near, far), Stream(far, near)]
        setting(wide, "routing.backend", backend)
        eventually(lambda device=device: changed(device))
        time.sleep(0.5)
        losses.append([stream.lost() + stream.refused for stream in streams])
    assert losses == [[0, 0]] * 4


def test_hostgw_says_which_nodes_it_cannot_reach(wide: Cluster) -> None:
    refused = run("up", "--name", NAME, "--backend", "hostgw")
    assert refused.returncode == 2
    assert "routing.backend: hostgw reaches no node behind a router, and there are 2 segments" in refused.stderr
    with flows(wide, [("on-1", "on-3")]) as (near,):
        setting(wide, "routing.backend", "hostgw")
        try:
            output = "is not on a subnet of eth0"
            eventually(lambda: done("status", "--name", NAME).count(output) >= 8)
            eventually(lambda: "node-1: routing: node-2: node node-2 (" in done("status", "--name", NAME))
            selector = "involvedObject.name=node-1,reason=PeerUnreached"
            eventually(lambda: wide.get("events", "-A", "--field-selector", selector)["items"])
        finally:
            setting(wide, "routing.backend", "vxlan")
        eventually(lambda: output not in done("status", "--name", NAME))
        eventually(lambda: run("probe", "--name", NAME).returncode == 0)
    assert near.problems == []
