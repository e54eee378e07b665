"""Tracked connections to hostPorts that keep packets from the pod that has the port now.

While no pod has a hostPort, a packet to it makes a connection without translation; while a pod has it, one that leads
to that pod. A client of UDP sends on from the same port, so its packets belong to the old connection for ever: such
connections are deleted when a pod with the hostPort is added. Established connections of TCP belong to a program of the
node, which keeps them. Cost: one filtered listing for each hostPort.
"""

from collections.abc import Collection, Iterable

from podwire.cni import ports
from podwire.cni.spec import PortMapping
from podwire.kernel.conntrack import Conntrack, Flow, Target


def is_stale(flow: Flow, mapping: PortMapping, pods: Collection[str], node: Collection[str]) -> bool:
    """Whether a connection to an address of ``node`` is one to the hostPort, and leads to none of ``pods``."""
    if flow.original.dst not in node or flow.backend[0] in pods or (flow.protocol == "TCP" and flow.assured):
        return False
    return ports.covers(mapping, flow.protocol.lower(), flow.original.dport, flow.original.dst)


def forget(conntrack: Conntrack, mappings: Iterable[PortMapping], pods: Collection[str], node: Collection[str]) -> int:
    """Deletes the stale connections to hostPorts of a pod; returns their number.

    Raises: Unsupported, KernelError.
    """
    count = 0
    for mapping in mappings:

        def matches(flow: Flow, mapping: PortMapping = mapping) -> bool:
            return is_stale(flow, mapping, pods, node)

        count += len(conntrack.forget(matches, (), mapping.protocol.upper(), Target("", mapping.host_port)))
    return count
