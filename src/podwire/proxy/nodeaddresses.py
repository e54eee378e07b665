"""The addresses of a node on which node ports answer, as the kernel has them now."""

from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.network import read_paths
from podwire.proxy.dataplane import addresses_of_node
from podwire.proxy.nodeports import within
from podwire.proxy.servicemap import NodeFacts


def node_port_addresses(facts: NodeFacts, netns: NetnsPath = None) -> tuple[str, ...]:
    """The addresses on which node ports answer now in a network namespace (None: that of this process).

    Raises: KernelError.
    """
    if not facts.node_port_ranges:
        return facts.addresses
    with Netlink(netns) as netlink:
        return within(addresses_of_node(read_paths(netlink)), facts.node_port_ranges)
