"""What policies make of connections that are to be tried."""

from typing import Any

import msgspec

from podwire.cluster.world import Party, World
from podwire.local.probe.plan import ProbeInputs, ProbePort, plan
from podwire.local.probe.verdicts import PolicyVerdicts
from podwire.model.meta import Condition, Object, ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeStatus
from podwire.model.pod import Container, ContainerPort, Pod, PodIP, PodSpec, PodStatus
from podwire.model.policy import NetworkPolicy
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec
from podwire.policy.evaluate import EvaluationOptions


def pod(name: str, node: int, last: int, *, port: int = 80, host: bool = False) -> Pod:
    address = f"10.89.0.{10 + node}" if host else f"10.244.{node}.{last}"
    containers = (Container(name="c", ports=(ContainerPort(container_port=port),)),)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="shop", uid=name, labels={"app": name.split("-")[0]}),
        spec=PodSpec(node_name=f"node-{node}", containers=containers, host_network=host),
        status=PodStatus(phase="Running", pod_ip=address, conditions=(Condition(type="Ready", status="True"),)),
    )


def node(number: int, mode: str = "nftables") -> Node:
    return Node(
        metadata=ObjectMeta(name=f"node-{number}", annotations={"podwire.io/proxy": mode}),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=f"10.89.0.{10 + number}"),)),
    )


def policy(name: str, **spec: Any) -> NetworkPolicy:
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, NetworkPolicy)


WEB, DB_1, DB_2, HOSTED = pod("web", 1, 2), pod("db-1", 1, 3), pod("db-2", 2, 3), pod("hosted", 1, 0, host=True)
DB = Service(
    metadata=ObjectMeta(name="db", namespace="shop"),
    spec=ServiceSpec(type="NodePort", cluster_ip="10.96.0.9", ports=(ServicePort(port=8080, node_port=30080),)),
)
DNS = Service(
    metadata=ObjectMeta(name="kube-dns", namespace="kube-system"),
    spec=ServiceSpec(cluster_ip="10.96.0.10", ports=(ServicePort(name="dns", port=53, protocol="UDP"),)),
)


def slices(service: Service, port: EndpointPort, *pods: Pod) -> EndpointSlice:
    meta = service.metadata
    ends = tuple(Endpoint(addresses=(p.addresses[0],), node_name=p.spec.node_name) for p in pods)
    labels = {"kubernetes.io/service-name": meta.name}
    meta = ObjectMeta(name=f"{meta.name}-1", namespace=meta.namespace, labels=labels)
    return EndpointSlice(metadata=meta, address_type="IPv4", endpoints=ends, ports=(port,))


def facts(*policies: NetworkPolicy, mode: str = "nftables") -> ProbeInputs:
    dns = pod("dns", 2, 9)
    pods = (WEB, DB_1, DB_2, HOSTED, dns)
    nodes = (node(1, mode), node(2, mode))
    return ProbeInputs(
        pods=pods,
        services=(DB, DNS),
        node_addresses=(("node-1", "10.89.0.11"), ("node-2", "10.89.0.12")),
        slices=(
            slices(DB, EndpointPort(name="", protocol="TCP", port=80), DB_1, DB_2),
            slices(DNS, EndpointPort(name="dns", protocol="UDP", port=53), dns),
        ),
        world=World(pods=pods, nodes=nodes, namespaces=(Object(metadata=ObjectMeta(name="shop")),), policies=policies),
        host_address="10.89.0.1",
        host_port=6443,
    )


def planned_outcomes(
    probe_inputs: ProbeInputs, source: str, target: str, *ports: ProbePort
) -> list[tuple[str, bool, bool, bool]]:
    """Of each attempt the target, whether it is expected, whether both are well, and whether policies speak."""
    return [(a.target, a.expected, a.either, bool(a.because)) for a in plan(probe_inputs, (source,), (target,), ports)]


DENY_DB = policy("deny", podSelector={"matchLabels": {"app": "db"}}, policyTypes=["Ingress"])
QUIET = policy("quiet", podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Egress"])


def test_without_policies_everything_is_expected() -> None:
    assert planned_outcomes(facts(), "shop/web", "shop/db-1") == [("shop/db-1", True, False, False)]
    assert planned_outcomes(facts(), "shop/web", "svc/shop/db") == [("svc/shop/db", True, False, False)]


def test_a_denial_is_expected_and_says_which_policy_it_is() -> None:
    result = plan(facts(DENY_DB), ("shop/web",), ("shop/db-1",), ())[0]
    assert not result.expected
    assert "shop/deny" in result.because
    assert result.because.startswith("shop/web -> shop/db-1 TCP 80: dropped at ingress")


def test_policies_do_not_explain_undeclared_ports() -> None:
    assert planned_outcomes(facts(), "shop/web", "shop/db-1", ProbePort(number=9)) == [
        ("shop/db-1", False, False, False)
    ]


def test_a_service_has_the_verdict_of_its_endpoints() -> None:
    assert planned_outcomes(facts(DENY_DB), "shop/web", "svc/shop/db") == [("svc/shop/db", False, False, True)]
    subset = policy("some", podSelector={}, ingress=[{"from": [{"ipBlock": {"cidr": "10.244.1.2/32"}}]}])
    rest = policy("rest", podSelector={}, policyTypes=["Ingress"])
    assert planned_outcomes(facts(subset, rest), "shop/web", "svc/shop/db") == [("svc/shop/db", True, False, False)]


def test_mixed_endpoints_accept_either_outcome() -> None:
    block = policy(
        "half",
        podSelector={"matchLabels": {"app": "web"}},
        egress=[{"to": [{"ipBlock": {"cidr": "10.244.1.0/24"}}]}, {"ports": [{"port": 53, "protocol": "UDP"}]}],
    )
    assert planned_outcomes(facts(block), "shop/web", "svc/shop/db") == [("svc/shop/db", True, True, True)]


def test_who_may_not_ask_dns_reaches_no_name() -> None:
    allow = policy(
        "allow",
        podSelector={"matchLabels": {"app": "web"}},
        egress=[{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}],
        policyTypes=["Egress"],
    )
    assert planned_outcomes(facts(allow), "shop/web", "shop/db-1") == [("shop/db-1", True, False, False)]
    result = plan(facts(allow), ("shop/web",), ("svc/shop/db",), ())[0]
    assert not result.expected
    assert result.because.startswith("cluster DNS: shop/web -> shop/dns UDP 53: dropped at egress")


def test_pods_in_the_network_of_their_node_are_their_node() -> None:
    assert planned_outcomes(facts(DENY_DB), "shop/hosted", "shop/db-1") == [("shop/db-1", True, False, False)]
    assert planned_outcomes(facts(DENY_DB), "shop/hosted", "shop/db-2") == [("shop/db-2", False, False, True)]


def test_the_own_node_is_reached_unless_the_settings_say_otherwise() -> None:
    assert planned_outcomes(facts(QUIET), "shop/web", "shop/hosted") == [("shop/hosted", True, False, False)]
    policed = msgspec.structs.replace(facts(QUIET), rules=EvaluationOptions(own_node_egress=False))
    assert planned_outcomes(policed, "shop/web", "shop/hosted") == [("shop/hosted", False, False, True)]


def test_the_address_of_the_destinations_family_counts() -> None:
    status = msgspec.structs.replace(WEB.status, pod_ips=(PodIP(ip=WEB.addresses[0]), PodIP(ip="fd44::2")))
    web = msgspec.structs.replace(WEB, status=status)
    six = policy(
        "six", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"from": [{"ipBlock": {"cidr": "fd44::/64"}}]}]
    )
    verdicts = PolicyVerdicts(World(pods=(web, DB_1), policies=(six,)))
    db = verdicts.pod(DB_1)
    assert not verdicts.between(verdicts.pod(web), db, 80, "TCP").allowed
    assert verdicts.between(verdicts.pod(web), msgspec.structs.replace(db, address="fd44::3"), 80, "TCP").allowed


def test_this_machine_is_outside_of_the_cluster() -> None:
    assert planned_outcomes(facts(QUIET), "shop/web", "host") == [("host", False, False, True)]
    assert planned_outcomes(facts(), "shop/web", "host") == [("host", True, False, False)]


def test_node_port_source_is_client_or_entry_node() -> None:
    outside = policy(
        "outside",
        podSelector={"matchLabels": {"app": "db"}},
        ingress=[{"from": [{"ipBlock": {"cidr": "10.89.0.1/32"}}]}],
    )
    verdicts = PolicyVerdicts(facts(outside).world, facts().slices)
    result = verdicts.node_port("node-1", Party(address="10.89.0.1"), DB, 30080, "TCP")
    assert result is not None
    assert (result.allowed, result.either) == (True, True)
    assert "node node-1 -> shop/db-2 TCP 80" in result.because
    assert planned_outcomes(facts(outside), "host", "svc/shop/db")[0][1:3] == (True, True)


def test_a_service_without_endpoints_is_unreachable() -> None:
    result = msgspec.structs.replace(facts(), slices=())
    assert planned_outcomes(result, "shop/web", "svc/shop/db") == [("svc/shop/db", False, False, False)]
    assert planned_outcomes(result, "host", "svc/shop/db")[0][1] is False


def test_a_relay_makes_the_connection_the_nodes_own() -> None:
    relayed = facts(DENY_DB, mode="userspace")
    assert planned_outcomes(relayed, "shop/web", "svc/shop/db") == [("svc/shop/db", True, True, True)]


def test_pods_of_two_networks_may_be_separate() -> None:
    networks = [
        {"name": "default", "vlan": 7, "cidrs": ["10.244.1.0/24"]},
        {"name": "blue", "vlan": 101, "cidrs": ["10.245.1.0/24"]},
    ]
    facts = msgspec.json.encode({"backend": "vlan", "networks": networks}).decode()
    annotations = {"podwire.io/routing-facts": facts}
    joined = msgspec.structs.replace(node(1), metadata=ObjectMeta(name="node-1", annotations=annotations))
    blue = msgspec.structs.replace(pod("blue", 1, 9), status=PodStatus(phase="Running", pod_ip="10.245.1.9"))
    verdicts = PolicyVerdicts(World(pods=(WEB, DB_1, blue), nodes=(joined,)))
    expected = verdicts.between(verdicts.pod(WEB), verdicts.pod(blue), 80, "TCP")
    assert (expected.allowed, expected.either) == (False, True), "a contract may join the networks"
    assert expected.because == (
        "the networks default (VLAN 7) and blue (VLAN 101) are separate, unless a contract joins them"
    )
    assert verdicts.between(verdicts.pod(WEB), verdicts.pod(DB_1), 80, "TCP").allowed
