import pytest

from podwire.errors import ConfigError
from podwire.local.probe.plan import ProbeInputs, ProbePort, overview, parse_port, plan
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec


def pod(name: str, node: str, address: str, *, namespace: str = "shop", ready: bool = True, port: int = 80) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", labels={"app": name.split("-")[0]}),
        spec=PodSpec(node_name=node, containers=(Container(name="c", ports=(ContainerPort(container_port=port),)),)),
        status=PodStatus(phase="Running", pod_ip=address, conditions=(Condition(type="Ready", status=str(ready)),)),
    )


def service(name: str, cluster_ip: str, **fields: object) -> Service:
    spec = ServiceSpec(cluster_ip=cluster_ip, ports=(ServicePort(port=8080, **fields),), type="NodePort")  # type: ignore[arg-type]
    return Service(metadata=ObjectMeta(name=name, namespace="shop"), spec=spec)


def endpoints(name: str, *addresses: str) -> EndpointSlice:
    """The slice of a Service, with endpoints on node-1, node-2 and so on."""
    return EndpointSlice(
        metadata=ObjectMeta(name=f"{name}-1", namespace="shop", labels={"kubernetes.io/service-name": name}),
        address_type="IPv4",
        endpoints=tuple(
            Endpoint(addresses=(address,), node_name=f"node-{number}") for number, address in enumerate(addresses, 1)
        ),
        ports=(EndpointPort(name="", protocol="TCP", port=80),),
    )


FACTS = ProbeInputs(
    pods=(
        pod("web-1", "node-1", "10.244.0.2"),
        pod("web-2", "node-2", "10.244.1.2"),
        pod("db-0", "node-1", "10.244.0.3", ready=False, port=5432),
    ),
    services=(service("web", "10.96.0.7", node_port=30080), service("all", "None", target_port=80)),
    node_addresses=(("node-1", "10.89.0.11"), ("node-2", "10.89.0.12")),
    slices=(endpoints("web", "10.244.0.2", "10.244.1.2"), endpoints("all", "10.244.0.2")),
    host_address="10.89.0.1",
    host_port=6443,
)


def planned_attempts(sources: str, targets: str, *ports: ProbePort) -> list[tuple[str, str, str, str, bool]]:
    return [
        (a.source.name, a.target, a.address, str(a.port), a.expected)
        for a in plan(FACTS, (sources,), (targets,), ports)
    ]


def test_pods_are_probed_on_declared_ports_by_other_pods() -> None:
    assert planned_attempts("shop/web", "shop/web") == [
        ("shop/web-1", "shop/web-2", "10.244.1.2", "80/TCP", True),
        ("shop/web-2", "shop/web-1", "10.244.0.2", "80/TCP", True),
    ]


def test_unready_pods_and_undeclared_ports_are_not_expected() -> None:
    assert planned_attempts("shop/web-1", "shop/app=db") == [
        ("shop/web-1", "shop/db-0", "10.244.0.3", "5432/TCP", False)
    ]
    assert planned_attempts("shop/web-1", "shop/web-2", ProbePort(number=81))[0][4] is False


def test_services_are_probed_by_name_headless_by_target_port() -> None:
    assert planned_attempts("shop/web-1", "svc/shop/web") == [
        ("shop/web-1", "svc/shop/web", "web.shop.svc.cluster.local", "8080/TCP", True)
    ]
    assert planned_attempts("shop/web-1", "svc/shop/all")[0][3] == "80/TCP"


def test_the_host_reaches_services_by_node_port_and_no_pods() -> None:
    assert planned_attempts("host", "svc/shop/web") == [
        ("host", "node-1:30080 of svc/shop/web", "10.89.0.11", "30080/TCP", True),
        ("host", "node-2:30080 of svc/shop/web", "10.89.0.12", "30080/TCP", True),
    ]
    assert planned_attempts("host", "shop/web-1")[0][4] is False


def test_pods_probe_the_host_at_api_or_named_ports() -> None:
    assert planned_attempts("shop/web-1", "host") == [("shop/web-1", "host", "10.89.0.1", "6443/TCP", True)]
    assert planned_attempts("shop/web-1", "host", ProbePort(number=53, protocol="UDP"))[0][3] == "53/UDP"
    assert planned_attempts("host", "host") == []


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("shop/nobody", "all", "names no running pod; expected NAMESPACE/POD or"),
        ("svc/shop/web", "all", "a Service sends no packets"),
        ("all", "svc/shop/none", "no Service none in namespace shop"),
    ],
)
def test_words_that_name_nothing_are_refused(source: str, target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(FACTS, (source,), (target,), ())


@pytest.mark.parametrize("word", ["", "http", "0", "70000", "80/SCTP", "80/tcp/x"])
def test_wrong_ports_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="expected a port"):
        parse_port(word)


def test_ports_are_read() -> None:
    assert (parse_port("53/udp"), parse_port("80")) == (ProbePort(number=53, protocol="UDP"), ProbePort(number=80))


def test_overview_covers_nodes_services_and_node_ports() -> None:
    attempts = overview(FACTS, most=2)
    pairs = {(a.source.name, a.target) for a in attempts if not a.named and a.source.name != "host"}
    assert pairs == {("shop/db-0", "shop/web-2"), ("shop/web-2", "shop/db-0")}
    assert {(a.source.node, a.target) for a in attempts if a.named} == {
        (node, target) for node in ("node-1", "node-2") for target in ("svc/shop/web", "svc/shop/all")
    }
    assert sum(1 for a in attempts if a.source.name == "host") == 2
