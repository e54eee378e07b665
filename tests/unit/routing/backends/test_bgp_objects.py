"""What the objects of projectcalico.org/v3 say, which are refused, and which sessions follow from them."""

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import msgspec
import pytest

from podwire.bgp.configuration import RouteRule
from podwire.errors import ConfigError
from podwire.model.bgp import BgpConfigurationObject, BgpFilterObject, BgpPeerObject, IpPoolObject
from podwire.routing.backends.bgp.backend import BgpRouting
from podwire.routing.backends.bgp.filters import FilterValues, read_filter
from podwire.routing.backends.bgp.objects import (
    REFLECTOR,
    BgpObjects,
    ConfigurationValues,
    PeerValues,
    PoolValues,
    Surroundings,
    read_configuration,
    read_peer,
    read_pool,
)
from podwire.routing.backends.bgp.options import BgpOptions, BgpSection
from podwire.routing.backends.bgp.serviceaddresses import AnnouncedRanges
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay

Json = dict[str, Any]


def secret(name: str, key: str) -> str | None:
    if name == "unreadable":
        raise ConfigError("Secret kube-system/unreadable", "", "is not readable")
    return {("bgp-secrets", "rack"): "s3cret", ("bgp-secrets", "wrong"): 'a"b'}.get((name, key))


AROUND = Surroundings(
    secrets=secret,
    filters={"no-default": FilterValues(imports=(RouteRule(version=4, accept=False),))},
    node_addresses=frozenset([ip_address("10.89.0.12")]),
    pod_cidrs=(ip_network("10.244.1.0/24"),),
    device="eth0",
)


def configuration(spec: Json, name: str = "default") -> ConfigurationValues:
    obj = msgspec.convert({"metadata": {"name": name}, "spec": spec}, BgpConfigurationObject)
    return read_configuration(obj, AROUND)


def peer_values(spec: Json) -> PeerValues:
    return read_peer(msgspec.convert({"metadata": {"name": "tor"}, "spec": spec}, BgpPeerObject), AROUND)


def rules(spec: Json) -> FilterValues:
    return read_filter(msgspec.convert({"metadata": {"name": "f"}, "spec": spec}, BgpFilterObject))


def pool(spec: Json) -> PoolValues:
    return read_pool(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, IpPoolObject), AROUND)


PASSWORD = {"secretKeyRef": {"name": "bgp-secrets", "key": "rack"}}
TOR = {"peerIP": "10.89.0.1", "asNumber": 64600}


def test_every_honoured_field_of_a_configuration() -> None:
    assert configuration(
        {
            "asNumber": 4200000001,
            "nodeToNodeMeshEnabled": False,
            "listenPort": 1179,
            "bindMode": "NodeIP",
            "logSeverityScreen": "Fatal",
            "nodeMeshPassword": PASSWORD,
            "nodeMeshMaxRestartTime": "2m30s",
            "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}],
            "serviceExternalIPs": [{"cidr": "192.0.2.0/25"}, {}],
            "serviceLoadBalancerIPs": [{"cidr": "fd00:1::/112"}, {"cidr": "10.96.0.0/12"}],
            "communities": [{"name": "blue", "value": "64512:7"}],
            "prefixAdvertisements": [{"cidr": "10.244.0.0/16", "communities": ["blue", "64512:1:7"]}],
            "ignoredInterfaces": ["eth9", "cali*"],
            "programClusterRoutes": "Disabled",
        }
    ) == ConfigurationValues(
        as_number=4200000001,
        listen_port=1179,
        mesh=False,
        password="s3cret",
        restart_time_s=150,
        log_level="error",
        strict_bind=True,
        service_ranges=AnnouncedRanges(
            cluster=(ip_network("10.96.0.0/12"),),
            external=(ip_network("192.0.2.0/25"),),
            balancers=(ip_network("fd00:1::/112"), ip_network("10.96.0.0/12")),
        ),
        ignored_devices=("eth9", "cali*"),
        writes_pod_routes=False,
        tags=((ip_network("10.244.0.0/16"), ((64512, 7), (64512, 1, 7))),),
    )


def test_severity_is_read_in_any_case_of_letters() -> None:
    severities = {"Trace": "debug", "debug": "debug", "INFO": "info", "warning": "warning", "Fatal": "error"}
    assert {text: configuration({"logSeverityScreen": text}).log_level for text in severities} == severities


def test_load_balancers_without_aggregation() -> None:
    spec = {"serviceLoadBalancerIPs": [{"cidr": "192.0.2.0/25"}], "serviceLoadBalancerAggregation": "Disabled"}
    ranges = configuration(spec).service_ranges
    assert ranges is not None and not ranges.aggregates and ranges.announced == ()


def test_node_has_its_own_settings_over_those_of_all() -> None:
    objects = BgpObjects(
        default=configuration({"asNumber": 64513, "listenPort": 1179}),
        nodes={"node-1": configuration({"asNumber": 64514}, "node.node-1")},
    )
    assert (objects.of_node("node-1").as_number, objects.of_node("node-1").listen_port) == (64514, 1179)
    assert objects.of_node("node-2").as_number == 64513


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("other", {}, "BGPConfiguration other: metadata.name: expected default, or node.NAME"),
        ("node.", {}, "metadata.name: expected default"),
        (
            "node.n1",
            {"nodeToNodeMeshEnabled": True},
            "spec.nodeToNodeMeshEnabled: can only be set in the object default",
        ),
        (
            "node.n1",
            {"nodeMeshMaxRestartTime": "1s"},
            "spec.nodeMeshMaxRestartTime: can only be set in the object default",
        ),
        ("default", {"asNumber": 0}, "BGPConfiguration default: spec.asNumber: 0 is not in 1..4294967295"),
        ("default", {"listenPort": 65536}, "spec.listenPort: 65536 is not in 1..65535"),
        ("default", {"logSeverityScreen": "Loud"}, "spec.logSeverityScreen: 'Loud': expected one of Trace, Debug"),
        ("default", {"ipv4NormalRoutePriority": 1024}, "spec.ipv4NormalRoutePriority: podwire gives all routes of BGP"),
        ("default", {"ipv6NormalRoutePriority": 1}, "spec.ipv6NormalRoutePriority: podwire gives all routes of BGP"),
        (
            "default",
            {"serviceClusterIPs": [{"cidr": "10.96.0.0"}]},
            "spec.serviceClusterIPs[0].cidr: '10.96.0.0'",
        ),
        ("default", {"communities": [{"name": "a", "value": "7"}]}, "spec.communities[0].value: '7': expected two"),
        ("default", {"communities": [{"value": "1:7"}]}, "spec.communities[0].name: is missing"),
        (
            "default",
            {"prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["red"]}]},
            "spec.prefixAdvertisements[0].communities[0]: 'red': expected two numbers",
        ),
        (
            "default",
            {"prefixAdvertisements": [{"cidr": "10.0.0.0/8"}]},
            "spec.prefixAdvertisements[0].communities: is",
        ),
        ("default", {"nodeMeshPassword": {}}, "spec.nodeMeshPassword.secretKeyRef: expected the name of a Secret"),
        (
            "default",
            {"nodeMeshPassword": {"secretKeyRef": {"name": "bgp-secrets", "key": "none"}}},
            "spec.nodeMeshPassword.secretKeyRef: there is no Secret bgp-secrets with the key none",
        ),
        (
            "default",
            {"nodeMeshPassword": {"secretKeyRef": {"name": "unreadable", "key": "a"}}},
            "spec.nodeMeshPassword.secretKeyRef: Secret kube-system/unreadable: is not readable",
        ),
        ("default", {"nodeMeshMaxRestartTime": "2 minutes"}, "'2 minutes': expected a duration such as 120s or 2m0s"),
        ("default", {"nodeMeshMaxRestartTime": "2h"}, "spec.nodeMeshMaxRestartTime: 7200 is not in 1..4095"),
        ("default", {"serviceLoadBalancerAggregation": "Off"}, "'Off': expected Enabled or Disabled"),
        (
            "default",
            {"ignoredInterfaces": ["eth9", "e*0"]},
            "spec.ignoredInterfaces[1]: e*0 matches eth0, the device with the node's addresses, which BIRD needs",
        ),
        ("default", {"ignoredInterfaces": ['"']}, "spec.ignoredInterfaces[0]: '\"': expected the name of a device"),
        ("default", {"programClusterRoutes": "Off"}, "'Off': expected one of Enabled, EnabledNoEncapOnly"),
        ("default", {"localWorkloadPeeringIPV4": "10.0.0.1"}, "10.0.0.1 is not supported; leave it out"),
    ],
)
def test_wrong_configurations_are_refused_with_their_field(name: str, spec: Json, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configuration(spec, name)
    assert problem in str(refused.value)


def test_every_honoured_field_of_a_peer() -> None:
    values = peer_values(
        {
            "nodeSelector": "rack == 'r1'",
            "peerIP": "[2001:db8::1]:1179",
            "asNumber": 64600,
            "localASNumber": 64700,
            "nextHopMode": "Self",
            "password": PASSWORD,
            "sourceAddress": "None",
            "maxRestartTime": "60s",
            "keepaliveTime": "20s",
            "numAllowedLocalASNumbers": 2,
            "ttlSecurity": 3,
            "reachableBy": "fd89::1",
            "filters": ["no-default"],
            "reversePeering": "Manual",
        }
    )
    assert values.nodes is not None and values.nodes.matches({"rack": "r1"})
    assert msgspec.structs.replace(values, nodes=None) == PeerValues(
        name="tor",
        address=ip_address("2001:db8::1"),
        port=1179,
        as_number=64600,
        local_as=64700,
        next_hop="self",
        password="s3cret",
        has_source=False,
        restart_time_s=60,
        keepalive_s=20,
        own_as_limit=2,
        hops=3,
        gateway=ip_address("fd89::1"),
        imports=(RouteRule(version=4, accept=False),),
        has_reverse=False,
    )
    assert peer_values({"peerIP": "10.89.0.12"}).as_number is None, "a node has a number of its own"
    assert peer_values({**TOR, "keepOriginalNextHop": True}).next_hop == "keep external"
    assert peer_values({**TOR, "peerIP": "10.89.0.1:1179"}).port == 1179


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "BGPPeer tor: spec.peerIP: expected either peerIP or peerSelector"),
        ({**TOR, "peerSelector": "all()"}, "spec.peerIP: expected either peerIP or peerSelector"),
        ({**TOR, "node": "n", "nodeSelector": "all()"}, "spec.nodeSelector: expected either node or nodeSelector"),
        ({**TOR, "nodeSelector": "rack = 'r1'"}, "spec.nodeSelector: not a selector"),
        ({"peerSelector": "has(", }, "spec.peerSelector: not a selector"),
        (
            {"peerSelector": "all()", "asNumber": 64512},
            "spec.asNumber: cannot be set: the nodes that peerSelector selects have",
        ),
        ({"peerIP": "10.89.0.1"}, "spec.asNumber: is missing, and 10.89.0.1 is not the address of a node"),
        ({**TOR, "asNumber": 1 << 32}, "spec.asNumber: 4294967296 is not in 1..4294967295"),
        ({**TOR, "peerIP": "router"}, "spec.peerIP: 'router' does not appear to be an IPv4 or IPv6 address"),
        ({**TOR, "peerIP": "10.89.0.1:0"}, "spec.peerIP: '10.89.0.1:0': expected a port in 1..65535"),
        ({**TOR, "peerIP": "[fd00::1]1179"}, "expected an address, or [address]:port"),
        ({**TOR, "filters": ["missing"]}, "spec.filters[0]: there is no valid BGPFilter missing"),
        ({**TOR, "reachableBy": "fd89::1"}, "spec.reachableBy: fd89::1: expected a peerIP of the same family"),
        ({"peerSelector": "all()", "reachableBy": "10.0.0.1"}, "spec.reachableBy: 10.0.0.1: expected a peerIP"),
        ({**TOR, "keepOriginalNextHop": True, "nextHopMode": "Auto"}, "expected either keepOriginalNextHop or"),
        ({**TOR, "ttlSecurity": 256}, "spec.ttlSecurity: 256 is not in 0..255"),
        ({**TOR, "maxRestartTime": "0s"}, "spec.maxRestartTime: 0 is not in 1..4095"),
        ({**TOR, "localWorkloadSelector": "all()"}, "spec.localWorkloadSelector: all() is not supported"),
        (
            {**TOR, "password": {"secretKeyRef": {"name": "bgp-secrets", "key": "wrong"}}},
            "spec.password: expected printable characters without double quotes",
        ),
    ],
)  # fmt: skip
def test_wrong_peers_are_refused_with_their_field(spec: Json, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        peer_values(spec)
    assert problem in str(refused.value)
    assert 'a"b' not in str(refused.value), "an error shows no password"


def test_every_honoured_field_of_a_rule() -> None:
    values = rules(
        {
            "importV4": [
                {
                    "action": "Accept",
                    "cidr": "10.0.0.0/8",
                    "matchOperator": "In",
                    "prefixLength": {"min": 16},
                    "interface": "eth*",
                    "source": "RemotePeers",
                    "peerType": "eBGP",
                    "communities": {"values": ["64512:7"]},
                    "asPathPrefix": [64600, 64601],
                    "operations": [
                        {"prependASPath": {"prefix": [1, 2]}},
                        {"addCommunity": {"value": "64512:8"}},
                        {"prependASPath": {"prefix": [3]}},
                    ],
                }
            ],
            "exportV6": [{"action": "Reject", "cidr": "fd00::/8", "matchOperator": "NotEqual"}],
        }
    )
    assert values == FilterValues(
        imports=(
            RouteRule(
                version=4,
                accept=True,
                network=ip_network("10.0.0.0/8"),
                lengths=(16, 32),
                interface="eth*",
                learned=True,
                peer_type="eBGP",
                community=(64512, 7),
                path_prefix=(64600, 64601),
                added=((64512, 8),),
                prepended=(3, 1, 2),
            ),
        ),
        exports=(RouteRule(version=6, accept=False, network=ip_network("fd00::/8"), operator="not equal"),),
    )


def test_prefixes_shorter_than_the_range_do_not_count() -> None:
    rule = {"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"min": 0, "max": 24}}
    assert rules({"importV4": [rule]}).imports[0].lengths == (8, 24)


IN_TEN = {"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In"}


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"action": "Accept", "cidr": "10.0.0.0/8"}, "BGPFilter f: spec.importV4[0].matchOperator: expected both"),
        ({"action": "Accept", "matchOperator": "In"}, "spec.importV4[0].matchOperator: expected both"),
        ({**IN_TEN, "cidr": "fd00::/8"}, "spec.importV4[0].cidr: fd00::/8: expected a range of IPv4"),
        ({**IN_TEN, "prefixLength": {"min": 33}}, "spec.importV4[0].prefixLength.min: 33 is not in 0..32"),
        ({**IN_TEN, "prefixLength": {"max": 7}}, "spec.importV4[0].prefixLength.max: 7 is not in 8..32"),
        ({**IN_TEN, "prefixLength": {"min": 24, "max": 16}}, "prefixLength.max: 16 is not in 24..32"),
        (
            {**IN_TEN, "matchOperator": "Equal", "prefixLength": {}},
            "prefixLength: expected a cidr with match",
        ),
        ({**IN_TEN, "interface": 'x"; drop'}, "spec.importV4[0].interface: 'x\"; drop': expected the name of"),
        ({**IN_TEN, "priority": 1}, "spec.importV4[0].priority: podwire gives all routes"),
        ({**IN_TEN, "communities": {"values": []}}, "communities.values: 0 values: expected one"),
        ({**IN_TEN, "communities": {"values": ["x"]}}, "communities.values[0]: 'x': expected two numbers"),
        ({**IN_TEN, "asPathPrefix": [0]}, "asPathPrefix[0]: 0 is not in 1.."),
        ({**IN_TEN, "operations": [{}]}, "operations[0]: expected either addCommunity or prependASPath"),
        ({**IN_TEN, "operations": [{"setPriority": {"value": 1}}]}, "operations[0].setPriority: podwire gives"),
        (
            {**IN_TEN, "action": "Reject", "operations": [{"addCommunity": {"value": "1:2"}}]},
            "spec.importV4[0].operations: a rejected route cannot be changed",
        ),
    ],
)
def test_wrong_rules_are_refused_with_their_field(rule: Json, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rules({"importV4": [rule]})
    assert problem in str(refused.value)


def test_pools_say_which_routes_are_announced() -> None:
    honoured = {"ipipMode": "Never", "vxlanMode": "Never", "natOutgoing": True, "blockSize": 24, "disabled": False}
    honoured |= {"nodeSelector": " all( ) ", "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic"}
    assert pool({"cidr": "10.244.0.0/16", **honoured}) == PoolValues(network=ip_network("10.244.0.0/16"))
    assert not pool({"cidr": "10.244.0.0/16", "disableBGPExport": True}).is_sent


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"cidr": "10.244.0.0"}, "IPPool p: spec.cidr: '10.244.0.0' is not a range"),
        ({"ipipMode": "Always"}, "spec.ipipMode: Always: the backend bgp does not encapsulate; expected Never, or rou"),
        ({"vxlanMode": "CrossSubnet"}, "spec.vxlanMode: CrossSubnet: the backend bgp does not encapsulate"),
        ({"natOutgoing": False}, "spec.natOutgoing: false, but routing.masquerade is true for all pods"),
        ({"blockSize": 26}, "spec.blockSize: 26, but nodes have ranges such as 10.244.1.0/24"),
        ({"disabled": True}, "spec.disabled: true is not supported; leave it out"),
        ({"nodeSelector": "rack == 'r1'"}, "spec.nodeSelector: rack=='r1' is not supported; expected all()"),
        ({"allowedUses": ["Tunnel"]}, "spec.allowedUses: expected Workload among the uses"),
        ({"assignmentMode": "Manual"}, "spec.assignmentMode: Manual is not supported; expected Automatic"),
    ],
)
def test_pools_that_cannot_be_honoured_are_refused(spec: Json, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pool({"cidr": "10.244.0.0/16", **spec})
    assert problem in str(refused.value)


def me(**changes: Any) -> LocalNode:
    node = LocalNode(
        name="node-1",
        addresses=(ip_address("10.89.0.11"),),
        pod_cidrs=(ip_network("10.244.1.0/24"),),
        underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
        run_dir="/run/test",
    )
    return msgspec.structs.replace(node, **changes)


def node(number: int, **changes: Any) -> Peer:
    peer = Peer(
        name=f"node-{number}",
        addresses=(ip_address(f"10.89.0.{10 + number}"),),
        pod_cidrs=(ip_network(f"10.244.{number}.0/24"),),
        facts=RoutingFacts("bgp", ("bgp",), {"bgp": {}}),
    )
    return msgspec.structs.replace(peer, **changes)


def conf(objects: BgpObjects, own: LocalNode, *nodes: Peer, section: BgpSection | None = None) -> str:
    routing = BgpRouting(BgpOptions(bgp=section or BgpSection()))
    routing.take_objects(objects)
    (bird,) = routing.plan(own, nodes, ClusterView(nodes, (ip_network("10.244.0.0/16"),))).children
    return bird.files["/run/test/bird.conf"].decode()


def block(text: str, name: str) -> str:
    """One session without its filters."""
    return text.split(f"protocol bgp {name} {{\n")[1].split("\n}\n")[0]


def neighbours(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line.startswith("  neighbor ")]


def test_reflectors_by_annotation_leave_the_mesh() -> None:
    reflector = node(2, annotations={REFLECTOR: "244.0.0.1"}, labels={"rr": "yes"})
    assert neighbours(conf(BgpObjects(), me(), reflector, node(3))) == ["10.89.0.13"]
    objects = BgpObjects(default=ConfigurationValues(mesh=False), peers=(peer_values({"peerSelector": "has(rr)"}),))
    assert neighbours(conf(objects, me(), reflector, node(3))) == ["10.89.0.12"]
    own = me(labels={REFLECTOR: "244.0.0.1", "rr": "yes"})
    text = conf(objects, own, reflector, node(3))
    assert neighbours(text) == ["10.89.0.12", "10.89.0.13"], "its clients have sessions with it"
    assert "rr client; rr cluster id 244.0.0.1;" in block(text, "node_10_89_0_13")
    assert "rr client" not in block(text, "node_10_89_0_12"), "both have the same identifier"


def test_manual_peers_have_no_session_back() -> None:
    manual = peer_values({"node": "node-2", "peerSelector": "own == 'x'", "reversePeering": "Manual"})
    automatic = msgspec.structs.replace(manual, has_reverse=True)
    default = ConfigurationValues(mesh=False)
    own = me(labels={"own": "x"})
    assert neighbours(conf(BgpObjects(default=default, peers=(manual,)), own, node(2))) == []
    assert neighbours(conf(BgpObjects(default=default, peers=(automatic,)), own, node(2))) == ["10.89.0.12"]


def test_peer_gets_its_options_and_the_rules_of_its_type() -> None:
    spec = {**TOR, "maxRestartTime": "60s", "keepaliveTime": "20s", "ttlSecurity": 2, "numAllowedLocalASNumbers": 0}
    values = msgspec.structs.replace(
        peer_values({**spec, "nextHopMode": "Self", "sourceAddress": "None", "password": PASSWORD}),
        exports=(
            RouteRule(version=4, accept=False, peer_type="iBGP", network=ip_network("192.0.2.0/24")),
            RouteRule(version=4, accept=False, peer_type="eBGP", network=ip_network("198.51.100.0/24")),
            RouteRule(version=6, accept=False),
        ),
    )
    text = conf(BgpObjects(peers=(values,)), me())
    session = block(text, "peer_10_89_0_1")
    for line in (
        "  local port 179 as 64512;",
        "  graceful restart on; graceful restart time 60;",
        "  ttl security on;",
        "  hold time 60; keepalive time 20;",
        '  password "s3cret";',
    ):
        assert f"{line}\n" in f"{session}\n"
    assert "next hop self;" in session and "allow local as" not in session
    assert "net ~ [ 198.51.100.0/24+ ] then reject;" in text and "192.0.2.0/24" not in text


def test_peer_that_is_reachable_by_a_router_gets_a_route() -> None:
    objects = BgpObjects(peers=(peer_values({**TOR, "peerIP": "192.0.2.9", "reachableBy": "10.89.0.254"}),))
    routing = BgpRouting(BgpOptions())
    routing.take_objects(objects)
    planned = routing.plan(me(), (), ClusterView((), ()))
    assert [str(route) for route in planned.network.routes] == [
        "route 192.0.2.9/32 via 10.89.0.254 dev eth0 src 10.89.0.11"
    ]
    text = conf(objects, me())
    assert "  route 192.0.2.9/32 via 10.89.0.254;\n" in text and 'if proto = "gateways4" then reject;' in text
    far = BgpObjects(peers=(peer_values({**TOR, "peerIP": "192.0.2.9", "reachableBy": "10.90.0.1"}),))
    assert "gateways4" not in conf(far, me()), "the router is not on the subnet of the node"


def test_pool_without_export_is_not_announced() -> None:
    objects = BgpObjects(pools=(PoolValues(network=ip_network("10.244.0.0/16"), is_sent=False),))
    assert "  if net ~ [ 10.244.0.0/16+ ] then reject;\n  if source" in conf(objects, me(), node(2))


def test_settings_of_nodes_decide_numbers_and_ports() -> None:
    objects = BgpObjects(
        default=ConfigurationValues(as_number=64513, strict_bind=True),
        nodes={"node-2": ConfigurationValues(listen_port=1179)},
    )
    text = conf(objects, me(), node(2), node(3, annotations={"projectcalico.org/ASNumber": "64514"}))
    assert "local 10.89.0.11 port 179 as 64513;" in text and "strict bind on;" in text
    assert "neighbor 10.89.0.12 port 1179 as 64513;" in text and "neighbor 10.89.0.13 port 179 as 64514;" in text
    routing = BgpRouting(BgpOptions())
    routing.take_objects(objects)
    assert routing.announce(me()) == {"bgp": {"asNumber": 64513}}
