"""The addresses of a node do not include those of data planes."""

from podwire.proxy.dataplane import OWNER, addresses_of_node
from podwire.state import network


def test_addresses_for_services_are_not_the_node_s_own() -> None:
    state = network.parse(
        """\
link eth0 up
link kube-ipvs0 alias podwire/proxy down type dummy
link other alias podwire/routing up type dummy
address 192.168.99.1/24 dev eth0
address 10.96.0.10/32 dev kube-ipvs0
address 10.244.0.0/32 dev other
address fd99::1/64 dev eth0
"""
    )
    assert set(addresses_of_node(state)) == {"192.168.99.1", "10.244.0.0", "fd99::1"}
    assert [link.name for link in state.links if OWNER.owns_link(link)] == ["kube-ipvs0"]
