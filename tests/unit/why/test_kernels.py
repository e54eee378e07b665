"""What is read of nodes: devices, configuration, and how the node was read."""

from tests.fakes.clock import FakeClock

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.proxy.servicemap import NodeFacts
from podwire.state.network import NetworkState
from podwire.state.route import Address, Route
from podwire.why.kernels import NodeKernels, device_to
from podwire.why.nodes import NodeAccess


def test_the_configuration_of_a_node_is_asked_for_once() -> None:
    asked: list[str] = []

    def access(name: str) -> NodeAccess:
        asked.append(name)
        return NodeAccess(services=NodeFacts(name=name), readable=False, problem="settings are wrong")

    nodes, node = NodeKernels(access, FakeClock()), Node(metadata=ObjectMeta(name="a"))
    assert nodes.network(node) is None
    assert nodes.device(node, "192.0.2.1") == "eth0"
    assert nodes.notes(node) == ("settings are wrong",)
    assert asked == ["a"]


def test_narrowest_route_or_own_network_reaches_an_address() -> None:
    state = NetworkState(
        routes=(
            Route(dst="default", via="192.0.2.1", link="eth0"),
            Route(dst="10.244.0.0/24", kind="unreachable"),
            Route(dst="10.244.0.2/32", link="veth1"),
            Route(dst="10.244.1.0/24", via="192.0.2.7", link="tunnel"),
        ),
        addresses=(Address(cidr="10.244.0.1/24", link="cni0"), Address(cidr="fd10::1/64", link="cni0")),
    )
    paths = {"10.244.0.2": "veth1", "10.244.0.9": "cni0", "10.244.1.9": "tunnel", "198.51.100.1": "eth0"}
    assert {address: device_to(state, address) for address in paths} == paths
    assert device_to(state, "fd10::9") == "cni0"
    assert device_to(state, "fd99::9") == "eth0"
