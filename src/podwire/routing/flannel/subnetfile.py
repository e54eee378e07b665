"""The file ``subnet.env`` of a node of Flannel, which the CNI plugin ``flannel`` and other programs read (pure)."""

from collections.abc import Sequence

from podwire.routing.nodes import Network, node_address


def render_subnet_file(networks: Sequence[Network], pod_cidrs: Sequence[Network], mtu: int, *, masquerade: bool) -> str:
    """The file of a node: cluster networks and the node's subnet with its own address per family, and the pods' MTU.

    ``masquerade`` says whether this node masquerades, so that readers leave it alone. Of several networks of a family
    all are named, separated by commas; of several subnets the first.
    """
    lines = []
    for version, prefix in ((4, "FLANNEL"), (6, "FLANNEL_IPV6")):
        known = ",".join(str(network) for network in networks if network.version == version)
        subnet = next((cidr for cidr in pod_cidrs if cidr.version == version), None)
        if known:
            lines.append(f"{prefix}_NETWORK={known}")
        if subnet is not None:
            lines.append(f"{prefix}_SUBNET={node_address(subnet)}/{subnet.prefixlen}")
    lines += [f"FLANNEL_MTU={mtu}", f"FLANNEL_IPMASQ={str(masquerade).lower()}"]
    return "".join(f"{line}\n" for line in lines)
