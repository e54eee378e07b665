"""The tables of routing as nft prints them."""

from ipaddress import ip_address, ip_interface, ip_network

from msgspec.structs import replace

from podwire.routing.clustersets import sets_of
from podwire.routing.masquerade import masquerade_scopes
from podwire.routing.nodes import ClusterView, LocalNode, Peer, Underlay
from podwire.routing.tables import INGRESS, guard_udp_port, masquerade_table
from podwire.state.nft import Table
from podwire.state.nft_text import parse_table

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)
PEERS = (
    Peer(name="node-2", addresses=(ip_address("10.89.0.12"),), pod_cidrs=(ip_network("10.244.1.0/24"),)),
    Peer(name="far", addresses=(ip_address("10.90.0.1"),), pod_cidrs=(ip_network("10.244.2.0/24"),)),
)
PODS = (ip_network("10.244.0.0/16"),)

MASQUERADE = """\
table inet podwire-masquerade {
    comment "podwire routing"
    set pods4 {
        type ipv4_addr
        flags interval
        comment "pod networks of the cluster"
        elements = { 10.244.0.0/16 }
    }

    set kept4 {
        type ipv4_addr
        flags interval
        comment "destinations that see a pod's own address"
        elements = { 10.89.0.11,
                 10.89.0.12,
                 10.244.0.0/16,
                 127.0.0.0/8,
                 169.254.0.0/16,
                 224.0.0.0/4,
                 255.255.255.255 }
    }

    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "podwire-vxlan" ip saddr != @pods4 masquerade fully-random comment "the node into the tunnel"
        ip saddr @pods4 ip daddr != @kept4 masquerade fully-random comment "pods out of the cluster"
    }
}"""


def squeezed(text: str) -> str:
    return " ".join(text.split())


def masquerade(me: LocalNode, cluster: ClusterView, tunnels: tuple[str, ...] = ()) -> Table:
    return masquerade_table(masquerade_scopes(sets_of(me, cluster), tunnels))


def test_masquerade() -> None:
    table = masquerade(ME, ClusterView(PEERS, PODS), ("podwire-vxlan",))
    assert squeezed(str(table)) == squeezed(MASQUERADE)
    assert parse_table(str(table)) == table.canonical()


def test_without_a_tunnel_there_is_one_rule() -> None:
    assert len(masquerade(ME, ClusterView(PEERS, PODS)).chain("postrouting").rules) == 1


def test_guard() -> None:
    table = guard_udp_port("podwire-routing", 8472, ME, ClusterView(PEERS, PODS))
    assert [str(rule) for chain in table.chains for rule in chain.rules] == [
        'udp dport 8472 ip daddr 10.89.0.11 notrack comment "outer packets"',
        'udp dport 8472 ip daddr @nodes notrack comment "outer packets"',
        'udp dport 8472 ip saddr != @nodes drop comment "not from a node"',
        'udp dport 8472 ip daddr @nodes ip saddr != @nodes drop comment "not from a node"',
    ]
    assert "10.90.0.1" in str(table)
    assert parse_table(str(table)) == table.canonical()


def test_guard_tells_received_packets_at_the_device() -> None:
    table = guard_udp_port(
        "podwire-routing", 8472, replace(ME, features=frozenset([INGRESS])), ClusterView(PEERS, PODS)
    )
    assert squeezed("\n".join(table.chain("ingress").lines())) == (
        'chain ingress { type filter hook ingress device "eth0" priority filter; policy accept;'
        ' ip frag-off & 16383 == 0 udp dport 8472 ip daddr 10.89.0.11 notrack comment "outer packets" }'
    ), "connection tracking needs all fragments of a packet, and only the first one has the port"
    assert [chain.name for chain in table.chains] == ["ingress", "output", "input", "forward"]
    assert parse_table(str(table)) == table.canonical()


def test_both_families() -> None:
    table = masquerade(ME, ClusterView(PEERS, (*PODS, ip_network("fd00::/48"))))
    assert [declared.name for declared in table.sets] == ["pods4", "kept4", "pods6", "kept6"]
    assert parse_table(str(table)) == table.canonical()
