"""The iptables form of masquerade as iptables-save prints it, and the destinations that are left out."""

from ipaddress import ip_address, ip_interface, ip_network

from podwire.routing.clustersets import ClusterUnions, sets_of
from podwire.routing.masquerade import masquerade_rulesets, masquerade_scopes
from podwire.routing.nodes import ClusterView, LocalNode, Peer, Underlay
from podwire.state.chain_marks import MASQUERADE, chain_mark
from podwire.state.iptables import parse

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64"))),
)
NEAR = Peer(name="near", addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")))
FAR = Peer(name="far", addresses=(ip_address("10.90.0.1"), ip_address("fd90::1")))
CLUSTER = ClusterView((NEAR, FAR), (ip_network("10.244.0.0/16"), ip_network("fd44::/48")))

IPTABLES = """\
*nat ip
:PODWIRE-MASQUERADE
:PODWIRE-MASQUERADE-PODS
-A POSTROUTING -m comment --comment "podwire routing" -j PODWIRE-MASQUERADE
-A PODWIRE-MASQUERADE -s 10.244.0.0/16 -g PODWIRE-MASQUERADE-PODS
-A PODWIRE-MASQUERADE -o podwire-vxlan -m comment --comment "the node into the tunnel" -j MASQUERADE --random-fully
-A PODWIRE-MASQUERADE-PODS -d 10.89.0.11/32 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 10.89.0.12/32 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 10.244.0.0/16 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 127.0.0.0/8 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 169.254.0.0/16 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 192.168.0.0/16 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 224.0.0.0/4 -j RETURN
-A PODWIRE-MASQUERADE-PODS -d 255.255.255.255/32 -j RETURN
-A PODWIRE-MASQUERADE-PODS -m comment --comment "pods out of the cluster" -j MASQUERADE --random-fully
COMMIT"""


def test_iptables_form() -> None:
    exceptions = (ip_network("192.168.0.0/16"),)
    sets = ClusterUnions().take(ME, CLUSTER.peers, CLUSTER.pod_networks, exceptions)
    scopes = masquerade_scopes(sets, ("podwire-vxlan",))
    four, six = masquerade_rulesets(scopes)
    assert str(four) == IPTABLES
    assert parse(str(four).splitlines()) == four
    assert six.family == "ip6" and "-d fd89::12/128 -j RETURN" in str(six) and "192.168" not in str(six)
    assert chain_mark((four, six)) is MASQUERADE


def test_nodes_behind_a_router_are_masqueraded() -> None:
    remaining = {
        str(network) for scope in masquerade_scopes(sets_of(ME, CLUSTER)) for network in scope.unmasqueraded.networks
    }
    assert {"10.89.0.12/32", "fd89::12/128"} <= remaining
    assert not {"10.90.0.1/32", "fd90::1/128"} & remaining
