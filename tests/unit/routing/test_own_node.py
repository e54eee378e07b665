"""The node of an agent as routing and the wiring of pods see it."""

from collections.abc import Sequence
from ipaddress import ip_interface, ip_network

import msgspec

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.nodes import Address, Device, Underlay
from podwire.routing.own_node import OwnNode
from podwire.routing.underlay import DEFAULT_MTU

NODE = Node(
    metadata=ObjectMeta(name="n1"),
    spec=NodeSpec(pod_cidr="10.244.1.0/24", pod_cidrs=("10.244.1.0/24",)),
    status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="10.89.0.11"),)),
)


class Finder:
    """Finds one device, whose MTU may change; 0: no device."""

    mtu = 1400
    reads = 0

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        self.reads += 1
        return Underlay("eth0", self.mtu, (ip_interface("10.89.0.11/24"),)) if self.mtu else None


def test_devices_are_read_once_until_they_are_forgotten() -> None:
    finder = Finder()
    own = OwnNode("n1", lambda: {"n1": NODE}, finder)
    assert own.look()[1] == own.look()[1] == ""
    assert finder.reads == 1
    own.forget_underlay()
    own.look()
    assert finder.reads == 2


def test_incomplete_node_waits_for_the_api() -> None:
    nodes: dict[str, Node] = {}
    own = OwnNode("n1", lambda: nodes, Finder())
    assert (own.look(), own.waits_for_api) == ((None, "no Node n1"), True)
    nodes["n1"] = msgspec.structs.replace(NODE, spec=NodeSpec())
    assert (own.look(), own.waits_for_api) == ((None, "Node n1 has no pod CIDR yet"), True)
    assert own.pod_network() is None


def test_pods_get_the_mtu_of_the_node_s_device() -> None:
    finder = Finder()
    own = OwnNode("n1", lambda: {"n1": NODE}, finder)
    facts = own.pod_network()
    assert facts is not None
    assert (facts.mtus, facts.cidrs) == ({4: 1400}, (ip_network("10.244.1.0/24"),))
    finder.mtu = 0
    without = own.pod_network()
    assert without is not None and (without.mtus, without.addresses) == ({4: DEFAULT_MTU}, ())


class CloudFinder:
    """Finds a device for each of the hardware addresses in ``macs``."""

    def __init__(self) -> None:
        self.macs: list[str] = []

    def underlay(self, addresses: Sequence[Address]) -> Underlay:
        devices = {f"ens{number}": Device(9001, "", mac) for number, mac in enumerate(self.macs)}
        return Underlay("eth0", 9001, (ip_interface("10.89.0.11/24"),), devices)


def test_addresses_of_an_interface_wait_for_its_device() -> None:
    interfaces = tuple(
        PodInterface(
            number, f"02:00:00:00:00:0{number}", f"10.0.{number}.5/24", f"10.0.{number}.1", (f"10.0.{number}.8/31",)
        )
        for number in (1, 2)
    )
    annotations = NodeInterfaces(("10.0.0.0/16",), interfaces).annotation()
    node = msgspec.structs.replace(NODE, metadata=ObjectMeta(name="n1", annotations=annotations))
    finder = CloudFinder()
    own = OwnNode("n1", lambda: {"n1": node}, finder)
    assert own.look() == (
        None,
        "no device has the hardware address of an interface for pods (02:00:00:00:00:01, 02:00:00:00:00:02)",
    )
    assert own.waits_for_device and not own.waits_for_api
    for macs, networks in (
        (["02:00:00:00:00:01"], ["10.0.1.8/31"]),
        (["02:00:00:00:00:02", "02:00:00:00:00:01"], None),
    ):
        finder.macs = macs
        me, problem = own.look()
        assert me is not None and not problem and me.whole_cidrs
        assert [str(network) for network in me.pod_cidrs] == (networks or ["10.0.1.8/31", "10.0.2.8/31"])
        assert own.waits_for_device is bool(networks)
    facts = own.pod_network()
    assert facts is not None and facts.whole and len(facts.cidrs) == 2
