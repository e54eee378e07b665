"""Interfaces and addresses that the instances of nodes need, as text."""

from msgspec.structs import replace

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface
from podwire.controllers.cloudaddresses.plan import AddressTargets, NodeDemand, plan
from podwire.controllers.cloudaddresses.provider import AddressState, Instance, MarkedInterface

INSTANCE = Instance(id="i-1", subnet="subnet-a", groups=("sg-1",), indexes=(0,), interfaces_max=3, addresses_max=4)
FIRST = MarkedInterface(id="eni-1", instance="i-1", mac="02:00:00:00:00:01", address="10.0.1.5/24", gateway="10.0.1.1")
WARM = AddressTargets(warm=2)


def state(*interfaces: MarkedInterface) -> AddressState:
    used = (0, *(interface.index for interface in interfaces if interface.index and interface.instance == "i-1"))
    return AddressState({"i-1": replace(INSTANCE, indexes=used)}, interfaces, ("10.0.0.0/16",))


def demand(pods: int) -> NodeDemand:
    return NodeDemand(name="node-1", instance="i-1", pods=pods)


def attached(number: int, *pods: str) -> MarkedInterface:
    return replace(FIRST, id=f"eni-{number}", index=number, pods=pods)


def test_an_interface_is_made_then_attached_then_filled() -> None:
    assert str(plan([demand(0)], state(), WARM)) == "interface add for i-1 in subnet-a\n"
    assert str(plan([demand(0)], state(FIRST), WARM)) == "interface attach eni-1 to i-1 as 1\n"
    assert str(plan([demand(0)], state(attached(1)), WARM)) == "address add 2 to eni-1\n"
    assert str(plan([demand(0)], state(attached(1, "10.0.1.7", "10.0.1.8")), WARM)) == ""


def test_pods_are_counted_besides_the_warm_addresses() -> None:
    full = attached(1, "10.0.1.7", "10.0.1.8", "10.0.1.9")
    assert str(plan([demand(1)], state(full), WARM)) == ""
    assert str(plan([demand(2)], state(full), WARM)) == "interface add for i-1 in subnet-a\n"
    assert str(plan([demand(2)], state(full, attached(2)), WARM)) == "address add 1 to eni-2\n"


def test_the_minimum_is_assigned_without_pods() -> None:
    assert str(plan([demand(0)], state(attached(1)), AddressTargets(warm=0, minimum=3))) == "address add 3 to eni-1\n"


def test_pods_without_an_address_make_a_full_instance_a_problem() -> None:
    full = [attached(n, f"10.0.{n}.1", f"10.0.{n}.2", f"10.0.{n}.3") for n in (1, 2)]
    assert str(plan([demand(6)], state(*full), WARM)) == "", "the pods have addresses, only the warm ones are missing"
    made = plan([demand(7)], state(*full), WARM)
    assert str(made) == (
        "# node-1: instance i-1 has no room for 3 of 9 addresses: its type has 3 interfaces with 4 addresses\n"
    )


def test_a_second_interface_that_does_not_fit_is_deleted() -> None:
    surplus = replace(FIRST, id="eni-9")
    made = plan([demand(0)], state(attached(1, "10.0.1.7", "10.0.1.8"), attached(2), surplus), WARM)
    assert str(made) == "interface del eni-9\n"


def test_interfaces_of_instances_that_are_no_nodes_are_removed() -> None:
    left = replace(FIRST, id="eni-8", instance="i-8", index=1)
    gone = replace(FIRST, id="eni-7", instance="i-7")
    made = plan([], state(left, gone), WARM)
    assert str(made) == "interface del eni-7\ninterface detach eni-8\n"
    unknown = NodeDemand(name="node-2", problem="spec.providerID is ''")
    made = plan([unknown], state(left, gone), WARM)
    assert str(made) == "# node-2: spec.providerID is ''\n", "one of them may be the instance of this node"


def test_what_a_node_has_is_said_without_empty_interfaces() -> None:
    made = plan([demand(0)], state(attached(1, "10.0.1.8", "10.0.1.7"), attached(2)), AddressTargets(warm=2))
    pods = ("10.0.1.7/32", "10.0.1.8/32")
    interface = PodInterface(index=1, mac=FIRST.mac, address="10.0.1.5/24", gateway="10.0.1.1", pods=pods)
    assert made.have == {"node-1": NodeInterfaces(("10.0.0.0/16",), (interface,))}


IPV6 = AddressTargets(warm=2, ipv6=True)


def dual(*interfaces: MarkedInterface) -> AddressState:
    """The same instance in a subnet with both families, where an interface has two addresses of IPv6."""
    made = state(*(replace(interface, gateway6="fe80::1") for interface in interfaces))
    return AddressState(
        {"i-1": replace(made.instances["i-1"], addresses6_max=2)}, made.interfaces, ("10.0.0.0/16", "fd10::/56")
    )


def test_pods_of_both_families_need_as_many_of_each() -> None:
    assert str(plan([demand(0)], dual(attached(1)), IPV6)) == "address add 2 to eni-1\naddress -6 add 2 to eni-1\n"
    four = ("10.0.1.7", "10.0.1.8", "10.0.1.9")
    first = replace(attached(1, *four), pods6=("fd10::7", "fd10::8"))
    assert str(plan([demand(1)], dual(first), IPV6)) == "interface add for i-1 in subnet-a\n", "for IPv6 alone"
    assert str(plan([demand(1)], dual(first, attached(2)), IPV6)) == "address -6 add 1 to eni-2\n"
    second = replace(attached(2), pods6=("fd10::9", "fd10::a"))
    made = plan([demand(5)], dual(first, second), IPV6)
    assert str(made) == (
        "address add 3 to eni-2\n"
        "# node-1: instance i-1 has no room for 1 of 7 addresses: its type has 3 interfaces with 4 addresses; "
        "instance i-1 has no room for 3 of 7 IPv6 addresses: its type has 3 interfaces with 2 addresses\n"
    )
    assert [(x.index, x.address, x.gateway, x.pods) for x in made.have["node-1"].interfaces if not x.address] == [
        (1, "", "fe80::1", ("fd10::7/128", "fd10::8/128")),
        (2, "", "fe80::1", ("fd10::9/128", "fd10::a/128")),
    ]
    assert made.have["node-1"].networks == ("10.0.0.0/16", "fd10::/56")
    only_four = plan([demand(1)], dual(first), WARM).have["node-1"]
    assert only_four.networks == ("10.0.0.0/16",) and [x.gateway for x in only_four.interfaces] == ["10.0.1.1"]


def test_a_subnet_without_ipv6_is_a_problem_at_once() -> None:
    made = plan([demand(0)], state(attached(1, "10.0.1.7", "10.0.1.8")), IPV6)
    assert str(made) == "# node-1: instance i-1 has no IPv6 addresses: its type or its subnet subnet-a has none\n"


def test_prefixes_count_as_many_addresses_in_one_place() -> None:
    targets = AddressTargets(warm=2, ipv6=True, prefixes=True)
    assert str(plan([demand(20)], dual(attached(1)), targets)) == "prefix add 2 to eni-1\nprefix -6 add 1 to eni-1\n"
    filled = replace(attached(1, "10.0.1.16/28", "10.0.1.32/28"), pods6=("fd10::1:0:0:0/80",))
    assert str(plan([demand(30)], dual(filled), targets)) == ""
    assert str(plan([demand(46)], dual(filled), targets)) == "prefix add 1 to eni-1\n"
    assert (
        str(plan([demand(47)], dual(filled), targets)) == "prefix add 1 to eni-1\ninterface add for i-1 in subnet-a\n"
    )
    (four, six) = plan([demand(0)], dual(filled), targets).have["node-1"].interfaces
    assert (four.pods, six.pods) == (("10.0.1.16/28", "10.0.1.32/28"), ("fd10::1:0:0:0/80",))


def test_a_missing_instance_is_a_problem() -> None:
    made = plan([NodeDemand(name="node-1", instance="i-5")], state(), WARM)
    assert str(made) == "# node-1: instance i-5 does not exist\n"
