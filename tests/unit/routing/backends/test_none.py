"""What is special about the backend none: every peer counts as reached, and nothing is written."""

from ipaddress import ip_address, ip_interface, ip_network

from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.backends.none.backend import NoRouting
from podwire.routing.nodes import ClusterView, LocalNode, Peer, Underlay
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 9000, (ip_interface("10.89.0.11/24"),)),
)
FAR = Peer(name="far", addresses=(ip_address("192.0.2.1"),), pod_cidrs=(ip_network("10.244.1.0/24"),))


def test_nothing_is_written_for_peers() -> None:
    backend = NoRouting(BackendOptions())
    assert backend.plan(ME, [FAR], ClusterView((FAR,))) == BackendPlan()
    assert backend.reaches(ME, FAR) == "" and backend.announce(ME) == {}


def test_pods_get_the_mtu_of_the_underlay() -> None:
    settings = RoutingSettings(backend="none")
    created = plan(ME, [FAR], settings, settings.load())
    assert (created.pod_mtu, created.senders, created.problems) == (9000, {"far": "none"}, ())
    assert [route.kind for route in created.state.routes] == ["unreachable"], "for the node's own pod CIDR"
