"""Pod networks: settings that are refused, ranges of nodes, and the rules that separate networks."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cluster.podnetworks import NodePodNetwork, announced_networks
from podwire.errors import ConfigError
from podwire.routing.nodes import Device, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.plan import Plan, plan
from podwire.routing.podnetworks import Contract, PodNetworks, PodNetworkSection, node_range, node_ranges, separation
from podwire.routing.settings import parse_settings
from podwire.state.nft import Table

CLUSTER = (ip_network("10.244.0.0/16"), ip_network("fd44::/48"))
BLUE = PodNetworkSection(name="blue", id=101, cidrs=("10.245.0.0/16", "fd45::/48"))
RED = PodNetworkSection(name="red", id=102, cidrs=("10.246.0.0/20",))

SEPARATION = """\
route 10.244.0.0/16 type unreachable table 20101
route 10.244.0.0/16 type unreachable table 20102
route 10.245.0.0/16 type unreachable table 20007
route 10.245.0.0/16 type unreachable metric 4096
route 10.245.0.0/16 type unreachable table 20102
route 10.246.0.0/20 type unreachable table 20007
route 10.246.0.0/20 type unreachable table 20101
route 10.246.0.0/20 type unreachable metric 4096
route fd44::/48 type unreachable table 20101
route fd45::/48 type unreachable table 20007
route fd45::/48 type unreachable metric 4096
rule 1120 from 10.245.0.0/16 to 10.246.0.0/20 ipproto tcp dport 80 table 254
rule 1120 from 10.246.0.0/20 to 10.245.0.0/16 ipproto tcp sport 80 table 254
rule 1120 from 10.245.0.0/16 to 10.246.0.0/20 ipproto icmp table 254
rule 1120 from 10.246.0.0/20 to 10.245.0.0/16 ipproto icmp table 254
rule 1121 from 10.244.0.0/16 table 20007
rule 1121 -6 from fd44::/48 table 20007
rule 1121 from 10.245.0.0/16 table 20101
rule 1121 -6 from fd45::/48 table 20101
rule 1121 from 10.246.0.0/20 table 20102
"""


def test_rules_separate_networks_and_contracts_come_first() -> None:
    contract = Contract(name="web", consumer="blue", provider="red", ports=("TCP/80", "ICMP"))
    state = separation(PodNetworks(7, (BLUE, RED), (contract,)), CLUSTER)
    assert sorted(str(state).splitlines()) == sorted(SEPARATION.splitlines())
    assert not list(separation(PodNetworks(7), CLUSTER).objects())


def test_contracts_have_the_protocol_of_each_family() -> None:
    contract = Contract(name="ping", consumer="blue", provider="default", ports=("ICMP", "UDP/5000-5010"))
    text = str(separation(PodNetworks(7, (BLUE,), (contract,)), CLUSTER))
    assert "rule 1120 from 10.245.0.0/16 to 10.244.0.0/16 ipproto icmp table 254\n" in text
    assert "rule 1120 -6 from fd44::/48 to fd45::/48 ipproto ipv6-icmp table 254\n" in text
    assert "rule 1120 -6 from fd44::/48 to fd45::/48 ipproto udp sport 5000-5010 table 254\n" in text


def test_range_of_a_node_follows_from_its_pod_cidr() -> None:
    pods = (ip_network("10.244.3.0/24"), ip_network("fd44:0:0:3::/64"))
    assert list(map(str, node_ranges(BLUE, pods, CLUSTER))) == ["10.245.3.0/24", "fd45:0:0:3::/64"]
    assert list(map(str, node_ranges(RED, pods, CLUSTER))) == ["10.246.0.48/28"]


@given(st.integers(16, 28), st.integers(12, 22), st.data())
def test_ranges_of_nodes_never_overlap(length: int, own: int, data: st.DataObject) -> None:
    cluster, network = ip_network("10.0.0.0/16"), ip_network(f"172.16.0.0/{own}")
    if own + length - 16 > 30:
        with pytest.raises(ValueError, match="too small"):
            node_range(network, ip_network(f"10.0.0.0/{length}"), cluster)
        return
    numbers = (
        data.draw(st.lists(st.integers(0, 2 ** (length - 16) - 1), min_size=2, max_size=2, unique=True))
        if (length > 16)
        else [0]
    )
    pods = [ip_network((int(cluster.network_address) + (at << 32 - length), length)) for at in numbers]
    ranges = [node_range(network, each, cluster) for each in pods]
    assert len(set(ranges)) == len(pods)
    assert all(network.overlaps(each) and each.prefixlen >= network.prefixlen for each in ranges)
    assert not any(one.overlaps(two) for one in ranges for two in ranges if one is not two)


@pytest.mark.parametrize(
    ("pods", "cluster", "problem"),
    [
        ("10.244.3.0/24", (), "expected one IPv4 range in clusterCIDRs of the node's agent, not none"),
        ("10.244.3.0/24", ("10.244.0.0/16", "10.9.0.0/16"), "not 10.244.0.0/16, 10.9.0.0/16"),
        ("10.9.3.0/24", ("10.244.0.0/16",), "the pod CIDR 10.9.3.0/24 is outside of the cluster's 10.244.0.0/16"),
        (
            "10.244.3.0/27",
            ("10.244.0.0/16",),
            "10.246.0.0/20 is too small for parts of nodes: expected a /19",
        ),
        ("fd44::/64", ("10.244.0.0/16",), "it has no range of a family of the node's pod CIDRs"),
    ],
)
def test_ranges_that_cannot_be_say_why(pods: str, cluster: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        node_ranges(RED, (ip_network(pods),), tuple(map(ip_network, cluster)))


GOOD = {"name": "blue", "id": 101, "cidrs": ["10.245.0.0/16"]}
OTHER = {"name": "red", "id": 102, "cidrs": ["10.246.0.0/16"]}
DNS = {"name": "dns", "consumer": "blue", "provider": "default", "ports": ["UDP/53"]}
WRONG: list[tuple[dict[str, object], str]] = [
    ({"networks": [GOOD | {"id": 0}]}, r"routing\.vlan\.networks\[0\]\.id: 0 is not in 1\.\.4094"),
    ({"networks": [GOOD | {"id": 4095}]}, r"networks\[0\]\.id: 4095 is not in"),
    ({"networks": [GOOD | {"id": 1000}]}, r"networks\[0\]\.id: 1000 is the VLAN of routing\.vlan\.id already"),
    ({"networks": [GOOD, OTHER | {"id": 101}]}, r"networks\[1\]\.id: 101 is the VLAN of routing\.vlan\.networks\[0\]"),
    ({"networks": [GOOD, OTHER | {"name": "blue"}]}, r"networks\[1\]\.name: 'blue' is taken by routing\.vlan\.netw"),
    (
        {"networks": [GOOD | {"name": "default"}]},
        r"networks\[0\]\.name: 'default' is taken by the network",
    ),
    ({"networks": [GOOD | {"name": "Blue!"}]}, r"networks\[0\]\.name: 'Blue!' is not a name: expected lower-case"),
    ({"networks": [GOOD | {"cidrs": []}]}, r"networks\[0\]\.cidrs: is empty: expected one range"),
    ({"networks": [GOOD | {"cidrs": ["10.245.0.1/16"]}]}, r"networks\[0\]\.cidrs\[0\]: 10\.245\.0\.1/16 has host bits"),
    (
        {"networks": [GOOD | {"cidrs": ["10.1.0.0/16", "10.2.0.0/16"]}]},
        r"cidrs\[1\]: 10\.2\.0\.0/16 is the second range",
    ),
    (
        {"networks": [GOOD, OTHER | {"cidrs": ["10.245.128.0/17"]}]},
        r"networks\[1\]\.cidrs\[0\]: 10\.245\.128\.0/17 overlaps with routing\.vlan\.networks\[0\]\.cidrs\[0\]",
    ),
    ({"networks": [GOOD | {"vlan": 3}]}, r"routing\.vlan\.networks\[0\].*vlan"),
    (
        {"networks": [GOOD], "contracts": [DNS | {"consumer": "green"}]},
        r"contracts\[0\]\.consumer: there is no",
    ),
    (
        {"networks": [GOOD], "contracts": [DNS | {"provider": "blue"}]},
        r"contracts\[0\]\.provider: blue is the",
    ),
    (
        {"networks": [GOOD], "contracts": [DNS, DNS]},
        r"contracts\[1\]\.name: 'dns' is taken by routing",
    ),
    ({"networks": [GOOD], "contracts": [DNS | {"ports": ["53"]}]}, r"contracts\[0\]\.ports\[0\]: '53' is not a port"),
    ({"networks": [GOOD], "contracts": [DNS | {"ports": ["TCP/0"]}]}, r"ports\[0\]: 'TCP/0' is not a port"),
    ({"networks": [GOOD], "contracts": [DNS | {"ports": ["TCP/9-8"]}]}, r"ports\[0\]: 'TCP/9-8' is not a port"),
    ({"networks": [GOOD], "contracts": [DNS | {"ports": ["TCP/70000"]}]}, r"ports\[0\]: 'TCP/70000' is not a port"),
]


@pytest.mark.parametrize(("section", "problem"), WRONG)
def test_wrong_networks_and_contracts_are_refused_by_field(section: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_settings({"vlan": section}, "test")


def test_networks_overlap_with_no_reserved_range() -> None:
    settings = parse_settings({"vlan": {"networks": [GOOD, OTHER], "contracts": [DNS]}}, "test")
    assert [network.name for network in settings.pod_networks.networks] == ["blue", "red"]
    settings.check_overlap("test", {"clusterCIDRs": CLUSTER})
    with pytest.raises(ConfigError) as failure:
        settings.check_overlap("test", {"serviceCIDRs": (ip_network("10.246.4.0/22"),)})
    assert str(failure.value) == (
        "test: routing.vlan.networks[1].cidrs[0]: 10.246.0.0/16 overlaps with serviceCIDRs, 10.246.4.0/22"
    )


ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 9000, (ip_interface("10.89.0.11/24"),), {"eth0": Device(9000)}),
)
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"),),
    pod_cidrs=(ip_network("10.244.1.0/24"),),
    facts=RoutingFacts(
        "vlan",
        ("vlan",),
        {
            "mtu": 1500,
            "vlan": {"mac": "02:00:00:00:00:22"},
            "networks": [
                {"name": "default", "vlan": 1000, "cidrs": ["10.244.1.0/24"]},
                {"name": "blue", "vlan": 101, "cidrs": ["10.245.1.0/24"]},
            ],
        },
    ),
)


def planned(backend: str) -> Plan:
    settings = parse_settings({"backend": backend, "vlan": {"networks": [GOOD]}}, "test")
    return plan(ME, (PEER,), settings, settings.load(), CLUSTER[:1])


def test_plan_announces_networks_and_limits_their_packets() -> None:
    created = planned("vlan")
    networks = [NodePodNetwork("default", 1000, ("10.244.0.0/24",)), NodePodNetwork("blue", 101, ("10.245.0.0/24",))]
    assert list(created.pod_networks) == networks
    assert announced_networks(created.facts.details) == tuple(networks)
    sizes = {route.dst: route.mtu for route in created.state.routes if route.via}
    assert sizes == {"10.244.1.0/24": 1500, "10.245.1.0/24": 1500}
    assert created.state.links[-1].name == "podwire-vp101"
    (table,) = (value for value in created.values if isinstance(value, Table))
    assert "10.244.0.0-10.245.255.255" in str(table) or "10.244.0.0/15" in str(table), "answers are not masqueraded"


def test_networks_are_separate_while_another_backend_is_configured() -> None:
    created = planned("hostgw")
    assert created.pod_networks == ()
    assert "networks" not in created.facts.details
    rules = [str(rule) for rule in created.state.rules]
    assert rules == ["rule 1121 from 10.244.0.0/16 table 21000", "rule 1121 from 10.245.0.0/16 table 20101"]
