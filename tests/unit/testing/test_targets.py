"""The words of tests, and which connections they mean."""

import pytest

from podwire.cluster.world import World
from podwire.errors import ConfigError
from podwire.local.probe.plan import Expectations, PacketSource, ProbeInputs, source_of
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeStatus
from podwire.model.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec
from podwire.testing.targets import EXTERNAL, ReachTarget, attempts_of, parse_target


def pod(name: str, address: str, *ports: ContainerPort, namespace: str = "shop") -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", labels={"app": name[:2]}),
        spec=PodSpec(node_name="node-1", containers=(Container(name="c", ports=ports),)),
        status=PodStatus(phase="Running", pod_ip=address, conditions=(Condition(type="Ready", status="True"),)),
    )


SQL = ContainerPort(container_port=5432, name="sql")
WEB = pod("web", "10.244.0.2", ContainerPort(container_port=80))
DB_1, DB_2 = (pod(f"db-{n}", f"10.244.0.{n + 2}", SQL, ContainerPort(container_port=9)) for n in (1, 2))
DB = Service(
    metadata=ObjectMeta(name="db", namespace="shop"),
    spec=ServiceSpec(
        cluster_ip="10.96.0.9", ports=(ServicePort(name="sql", port=5432), ServicePort(name="more", port=9))
    ),
)
PAGE = Service(
    metadata=ObjectMeta(name="page", namespace="shop"),
    spec=ServiceSpec(type="NodePort", cluster_ip="10.96.0.8", ports=(ServicePort(port=80, node_port=30080),)),
)
SLICE = EndpointSlice(
    metadata=ObjectMeta(name="page-1", namespace="shop", labels={"kubernetes.io/service-name": "page"}),
    address_type="IPv4",
    endpoints=(Endpoint(addresses=("10.244.0.2",), node_name="node-1"),),
    ports=(EndpointPort(name="", protocol="TCP", port=80),),
)
HEADLESS = Service(
    metadata=ObjectMeta(name="bare", namespace="shop"),
    spec=ServiceSpec(cluster_ip="None", ports=(ServicePort(name="http", port=8080, target_port=80),)),
)
BARE = EndpointSlice(
    metadata=ObjectMeta(name="bare-1", namespace="shop", labels={"kubernetes.io/service-name": "bare"}),
    address_type="IPv4",
    endpoints=(Endpoint(addresses=("10.244.0.2",), node_name="node-1"),),
    ports=(EndpointPort(name="http", protocol="TCP", port=80),),
)
NODE = Node(
    metadata=ObjectMeta(name="node-1"),
    status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="10.89.0.11"),)),
)
FACTS = ProbeInputs(
    pods=(WEB, DB_1, DB_2),
    services=(DB, PAGE, HEADLESS),
    slices=(SLICE, BARE),
    node_addresses=(("node-1", "10.89.0.11"),),
    world=World(pods=(WEB, DB_1, DB_2), nodes=(NODE,)),
    host_address="10.89.0.1",
)
OUTSIDE = PacketSource(name=EXTERNAL, namespace="outside", address=EXTERNAL)


def attempts_from(word: str, place: PacketSource | None = None) -> list[tuple[str, str, str]]:
    result = attempts_of(Expectations(FACTS), place or source_of(WEB), word)
    return [(attempt.target, attempt.address, str(attempt.port)) for attempt in result]


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("db:5432", ReachTarget("db:5432", "db", "5432")),
        ("db.shop:53/udp", ReachTarget("db.shop:53/udp", "db.shop", "53", "UDP")),
        ("svc/shop/db:sql", ReachTarget("svc/shop/db:sql", "svc/shop/db", "sql")),
        ("svc/shop/db", ReachTarget("svc/shop/db", "svc/shop/db")),
        ("shop/db", ReachTarget("shop/db", "shop/db")),
        ("10.0.0.1:80/TCP", ReachTarget("10.0.0.1:80/TCP", "10.0.0.1", "80")),
        ("[2001:db8::1]:80", ReachTarget("[2001:db8::1]:80", "2001:db8::1", "80")),
        ("2001:db8::1", ReachTarget("2001:db8::1", "2001:db8::1")),
    ],
)
def test_words_are_taken_apart(word: str, target: ReachTarget) -> None:
    assert parse_target(word) == target


@pytest.mark.parametrize(
    ("word", "connections"),
    [
        ("db:5432", [("svc/shop/db", "db.shop.svc.cluster.local", "5432/TCP")]),
        ("db.shop:sql", [("svc/shop/db", "db.shop.svc.cluster.local", "5432/TCP")]),
        ("db.shop.svc.cluster.local:9", [("svc/shop/db", "db.shop.svc.cluster.local", "9/TCP")]),
        ("svc/shop/db:5433", [("svc/shop/db", "db.shop.svc.cluster.local", "5433/TCP")]),
        ("page", [("svc/shop/page", "page.shop.svc.cluster.local", "80/TCP")]),
        ("shop/db:sql", [("shop/db-1", "10.244.0.3", "5432/TCP"), ("shop/db-2", "10.244.0.4", "5432/TCP")]),
        ("shop/app=db:9/UDP", [("shop/db-1", "10.244.0.3", "9/UDP"), ("shop/db-2", "10.244.0.4", "9/UDP")]),
        ("node/node-1:30080", [("node/node-1", "10.89.0.11", "30080/TCP")]),
        ("10.96.0.8:80", [("10.96.0.8", "10.96.0.8", "80/TCP")]),
        ("external", [("external", EXTERNAL, "443/TCP")]),
        ("external:53/UDP", [("external", EXTERNAL, "53/UDP")]),
        ("shop/db-1:9/SCTP", [("shop/db-1", "10.244.0.3", "9/SCTP")]),
    ],
)
def test_words_mean_connections(word: str, connections: list[tuple[str, str, str]]) -> None:
    assert attempts_from(word) == connections


def test_outside_service_targets_are_node_ports_of_all_nodes() -> None:
    assert attempts_from("svc/shop/page", OUTSIDE) == [("node-1:30080 of svc/shop/page", "10.89.0.11", "30080/TCP")]


@pytest.mark.parametrize(
    ("word", "output"),
    [
        ("", "expected a target and a port"),
        (":80", "expected a target and a port"),
        ("db:70000", "expected a target and a port"),
        ("db:80/ICMP", "no port '80/ICMP'"),
        ("cache:80", "there is no Service shop/cache; pods are named with their namespace, shop/cache"),
        ("db", "no port is named; there are: sql, more"),
        ("db:http", "no port 'http'; there are: sql, more"),
        ("shop/db", "no port is named; there are: sql, 5432/TCP, 9/TCP"),
        ("shop/cache:1", "names no running pod"),
        ("svc/shop/cache", "there is no Service cache in namespace shop"),
        ("node/node-9:1", "there is no node 'node-9'; expected one of node-1"),
        ("10.0.0.1", "expected a port number"),
    ],
)
def test_words_that_name_nothing_are_refused(word: str, output: str) -> None:
    with pytest.raises(ConfigError) as failure:
        attempts_from(word)
    assert output in str(failure.value)


def test_from_a_node_a_service_is_its_address() -> None:
    node = PacketSource(name="node/node-1", node="node-1", host_network=True, address="10.89.0.11")
    assert attempts_from("db.shop:sql", node) == [("db.shop", "10.96.0.9", "5432/TCP")]


def test_outside_has_one_family() -> None:
    six = PacketSource(name="2001:db8::9", namespace="outside", address="2001:db8::9")
    with pytest.raises(ConfigError, match=r"2001:db8::9 and 10\.89\.0\.11 have different IP families"):
        attempts_from("svc/shop/page", six)


def test_a_pod_is_not_tried_from_itself() -> None:
    assert attempts_from("shop/db:9", source_of(DB_1)) == [("shop/db-2", "10.244.0.4", "9/TCP")]
    assert attempts_from("shop/web:80") == []


def test_a_service_without_node_ports_is_for_pods_alone() -> None:
    with pytest.raises(ConfigError, match="only pods reach it"):
        attempts_from("svc/shop/db:sql", OUTSIDE)


def test_policies_are_evaluated_for_ports_without_listener() -> None:
    expecting = Expectations(FACTS)
    attempt = attempts_of(expecting, source_of(WEB), "shop/db-1:1")[0]
    asked = expecting.connections[attempt]
    assert (asked.source.name, asked.destination.name, asked.port) == ("shop/web", "shop/db-1", 1)


def test_headless_services_use_the_pods_port() -> None:
    assert [port for _, _, port in attempts_from("bare:http")] == ["80/TCP"]
    assert [port for _, _, port in attempts_from("bare:8080")] == ["8080/TCP"]
