"""What is special about the backend cloudroutes: no route, a guard, and who sees the pods' own addresses."""

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from msgspec.structs import replace

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface
from podwire.routing.backend import BackendPlan
from podwire.routing.backends.cloudroutes.backend import CloudOptions, CloudRoutes, CloudSection
from podwire.routing.backends.cloudroutes.interfaces import MARKS_TABLE
from podwire.routing.nodes import ClusterView, Device, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.paths import PathState
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings
from podwire.state.network import merge, parse
from podwire.state.nft import Table

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.0.1.10"),),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd00:0:0:1::/64")),
    underlay=Underlay("eth0", 9001, (ip_interface("10.0.1.10/24"),)),
)
FAR = Peer(
    name="far",
    addresses=(ip_address("10.0.2.10"),),
    pod_cidrs=(ip_network("10.244.1.0/24"),),
    facts=RoutingFacts("cloudroutes", ("cloudroutes",)),
)


def test_a_node_has_a_guard_and_no_routes() -> None:
    made = CloudRoutes(CloudOptions()).plan(ME, [FAR], ClusterView((FAR,)))
    assert (str(made.network), [str(network) for network in made.unmasqueraded]) == ("", ["10.0.2.10/32"])
    (table,) = made.values
    assert isinstance(table, Table)
    assert [str(rule) for rule in table.chains[0].rules] == [
        'iifname "eth0" ip saddr @own4 drop comment "a pod of this node is not outside"',
        'iifname "eth0" ip6 saddr @own6 drop comment "a pod of this node is not outside"',
    ]


def test_nodes_behind_routers_see_the_addresses_of_pods() -> None:
    for backend, kept in (("cloudroutes", True), ("none", False)):
        settings = RoutingSettings(backend=backend)
        far = Peer(name=FAR.name, addresses=FAR.addresses, pod_cidrs=FAR.pod_cidrs)
        made = plan(ME, [far], settings, settings.load())
        masquerade = str(next(value for value in made.values if "masquerade" in str(value)))
        assert ("10.0.2.10" in masquerade) is kept, backend


def test_the_controller_says_when_the_network_is_ready() -> None:
    for backend, by_controller in (("cloudroutes", True), ("hostgw", False)):
        settings = RoutingSettings(backend=backend)
        made = plan(ME, [], settings, settings.load())
        assert made.ready_by_controller is by_controller, backend
        assert made.pod_mtu == 9001


MAC = "02:00:00:00:00:01"
INTERFACES = NodeInterfaces(
    ("10.0.0.0/16", "100.64.0.0/16"),
    (
        PodInterface(index=1, mac=MAC, address="10.0.1.5/24", gateway="10.0.1.1", pods=("10.0.1.8/32", "10.0.1.9/32")),
        PodInterface(
            index=2, mac="02:00:00:00:00:02", address="10.0.1.6/24", gateway="10.0.1.1", pods=("10.0.1.32/28",)
        ),
    ),
)
ON_INTERFACES = replace(
    ME,
    pod_cidrs=(ip_network("10.0.1.8/31"),),
    annotations=INTERFACES.annotation(),
    underlay=replace(ME.underlay, devices={"eth0": Device(9001), "eth1": Device(9001, "", MAC)}),
)


def of_interfaces(**options: Any) -> BackendPlan:
    section = CloudSection(pods="interfaces", **options)
    return CloudRoutes(CloudOptions(cloudroutes=section)).plan(ON_INTERFACES, [FAR], ClusterView((FAR,)))


def test_pods_leave_by_the_interface_of_their_address() -> None:
    made = of_interfaces()
    assert str(made.network) == (
        "link eth1 mtu 9001 up\n"
        "address 10.0.1.5/24 dev eth1 noprefixroute\n"
        "route 10.0.1.1/32 dev eth1 table 2\n"
        "route default via 10.0.1.1 dev eth1 onlink table 2\n"
        "rule 512 to 10.0.1.8/31 table 254\n"
        "rule 1024 fwmark 0x80 mask 0x80 table 254\n"
        "rule 1536 from 10.0.1.8/31 to 10.0.0.0/16 table 2\n"
        "rule 1536 from 10.0.1.8/31 to 100.64.0.0/16 table 2\n"
        "sysctl net/ipv4/conf/eth1/rp_filter = 2\n"
    )
    assert made.degraded == "no device has the hardware address 02:00:00:00:00:02"
    assert [str(network) for network in made.unmasqueraded] == ["10.0.2.10/32", "10.0.0.0/16", "100.64.0.0/16"]
    assert not made.ready_by_controller


def test_the_path_of_a_pod_leads_through_its_interface() -> None:
    backend = CloudRoutes(CloudOptions(cloudroutes=CloudSection(pods="interfaces")))
    planned = backend.plan(ON_INTERFACES, [FAR], ClusterView((FAR,))).network
    around = parse("link eth0 up\nroute default via 10.89.0.1 dev eth0\n")
    destination, pod = ip_address("10.0.2.44"), ip_address("10.0.1.8")
    routes = []
    for source in (pod, None):
        state = PathState(network=merge((around, planned)), source=source)
        path = backend.path(ON_INTERFACES, FAR, destination, state)
        assert not path.missing
        routes.append(str(path.route))
    assert routes == ["route default via 10.0.1.1 dev eth1 onlink table 2", "route default via 10.89.0.1 dev eth0"]


def test_a_gateway_that_translates_gets_all_packets_of_pods() -> None:
    rules = [str(rule) for rule in of_interfaces(external_nat=True).network.rules]
    assert "rule 1536 from 10.0.1.8/31 table 2" in rules and not any("10.0.0.0/16" in rule for rule in rules)


def test_terway_has_other_numbers() -> None:
    made = of_interfaces(layout="terway", external_nat=True).network
    assert [str(rule) for rule in made.rules] == [
        "rule 512 to 10.0.1.8/31 table 254",
        "rule 1024 fwmark 0x80 mask 0x80 table 254",
        "rule 2048 from 10.0.1.8/31 table 1001",
    ]
    assert {route.table for route in made.routes} == {1001}


def test_an_interface_of_both_families_is_there_twice() -> None:
    four = INTERFACES.interfaces[0]
    six = PodInterface(index=1, mac=MAC, address="", gateway="fe80::1", pods=("fd89::8/128",))
    both = NodeInterfaces(("10.0.0.0/16", "fd89::/32"), (four, six))
    me = replace(ON_INTERFACES, annotations=both.annotation())
    options = CloudOptions(cloudroutes=CloudSection(pods="interfaces"))
    network = CloudRoutes(options).plan(me, [FAR], ClusterView((FAR,))).network
    assert [str(link) for link in network.links] == ["link eth1 mtu 9001 up"]
    assert [str(address) for address in network.addresses] == ["address 10.0.1.5/24 dev eth1 noprefixroute"]
    assert [str(route) for route in network.routes if ":" in route.dst] == [
        "route ::/0 via fe80::1 dev eth1 onlink table 2",
        "route fe80::1/128 dev eth1 table 2",
    ]
    assert [str(rule) for rule in network.rules if rule.v6] == [
        "rule 512 -6 to fd89::8/128 table 254",
        "rule 1024 -6 fwmark 0x80 mask 0x80 table 254",
        "rule 1536 -6 from fd89::8/128 to fd89::/32 table 2",
    ]
    assert "sysctl net/ipv6/conf/eth1/accept_ra = 0" in str(network)


def test_answers_from_the_first_interface_return_there() -> None:
    table = next(value for value in of_interfaces().values if isinstance(value, Table) and value.name == MARKS_TABLE)
    assert [str(rule) for rule in table.chains[0].rules] == [
        'iifname "eth0" fib daddr type local ct state new ct mark set ct mark | 0x00000080 comment "to the node"',
        'iifname != "eth0" ct mark & 0x00000080 == 0x00000080 meta mark set meta mark | 0x00000080 comment "answers"',
    ]


def test_until_a_node_has_interfaces_it_has_no_rules() -> None:
    options = CloudOptions(cloudroutes=CloudSection(pods="interfaces"))
    made = CloudRoutes(options).plan(ME, [FAR], ClusterView((FAR,)))
    assert str(made.network) == "" and not made.ready_by_controller
