"""The subnet file as flanneld writes it."""

from ipaddress import ip_network

from podwire.routing.flannel.subnetfile import render_subnet_file

FOUR, SIX = ip_network("10.244.0.0/16"), ip_network("fd44::/48")


def test_the_file_of_a_node_with_both_families() -> None:
    own = (ip_network("10.244.3.0/24"), ip_network("fd44:0:0:3::/64"))
    assert render_subnet_file((FOUR, SIX), own, 1450, masquerade=True) == (
        "FLANNEL_NETWORK=10.244.0.0/16\n"
        "FLANNEL_SUBNET=10.244.3.1/24\n"
        "FLANNEL_IPV6_NETWORK=fd44::/48\n"
        "FLANNEL_IPV6_SUBNET=fd44:0:0:3::1/64\n"
        "FLANNEL_MTU=1450\n"
        "FLANNEL_IPMASQ=true\n"
    )


def test_the_file_of_a_node_with_one_family() -> None:
    assert render_subnet_file((FOUR,), (ip_network("10.244.3.0/24"),), 1500, masquerade=False) == (
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n"
    )
