"""The bridge of podwire's own pods, as all parts know it (pure).

Its ports are pods of one node. Unlike on the bridges of other plugins, pods send everything to the node, also packets
to other pods of the bridge.
"""

from podwire.state.link import Link

BRIDGE = "podwire-pods"
"""The name of the device."""
ALIAS = "podwire/cni pods"
"""Its alias, which marks it as podwire's."""


def is_pod_bridge(link: Link) -> bool:
    """Whether a device is the bridge of podwire's pods."""
    return (link.name, link.kind, link.alias) == (BRIDGE, "bridge", ALIAS)
