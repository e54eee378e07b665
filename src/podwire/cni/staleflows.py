"""Tracked connections to hostPorts that keep packets from the pod that has the port now.

While no pod has a hostPort, a packet to it makes a connection without translation; while a pod has it, the connection
leads to that pod. A client of UDP continues to send from the same port, so its packets would always belong to the old
connection: such connections are deleted soon after a pod with the hostPort was added. Established connections of TCP
belong to a program of the node, which keeps them. Cost: one listing for each protocol, whatever the number of pods; the
kernel walks through the connections of all network namespaces for it, 5 to 10 ms (measured).
"""

from collections.abc import Collection

from podwire.cni import ports
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.spec import PortMapping
from podwire.kernel.conntrack import Conntrack, Flow, Target

Ports = list[tuple[PortMapping, tuple[str, ...]]]
"""HostPorts with the addresses of their pods."""


def is_stale(flow: Flow, mapping: PortMapping, pods: Collection[str], node: Collection[str]) -> bool:
    """Whether a connection to an address of ``node`` is one to the hostPort, and leads to none of ``pods``."""
    if flow.original.dst not in node or flow.backend[0] in pods or (flow.protocol == "TCP" and flow.assured):
        return False
    return ports.covers(mapping, flow.protocol.lower(), flow.original.dport, flow.original.dst)


def forget(conntrack: Conntrack, attachments: Collection[Attachment], node: Collection[str]) -> int:
    """Deletes the stale connections to hostPorts of pods; returns their number.

    Raises: Unsupported, KernelError.
    """
    count = 0
    for protocol in sorted({mapping.protocol.upper() for attachment in attachments for mapping in attachment.ports}):
        ports_of_pods = [
            (mapping, attachment.addresses)
            for attachment in attachments
            for mapping in attachment.ports
            if mapping.protocol.upper() == protocol
        ]

        def matches(flow: Flow, ports_of_pods: Ports = ports_of_pods) -> bool:
            return any(is_stale(flow, mapping, pods, node) for mapping, pods in ports_of_pods)

        numbers = {mapping.host_port for mapping, _ in ports_of_pods}
        target = Target("", numbers.pop()) if len(numbers) == 1 else None
        count += len(conntrack.forget(matches, (), protocol, target))
    return count
