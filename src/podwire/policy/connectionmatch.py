"""Whether the peers and ports of a rule match a connection, by the objects of the cluster alone (pure)."""

from ipaddress import ip_address, ip_network

import msgspec

from podwire.cluster.world import Party, World
from podwire.model.pod import Pod
from podwire.model.policy import (
    ClusterPeer,
    ClusterProtocol,
    IPBlock,
    NamespacedPods,
    NetworkPolicy,
    PolicyPeer,
    PolicyPort,
    ProtocolPorts,
)
from podwire.model.selector import LabelSelector


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """One connection attempt, after translation of the destination and before translation of the source."""

    source: Party
    destination: Party
    protocol: str
    """TCP, UDP, SCTP, or the name of a protocol without ports, such as ICMP."""
    port: int = 0


class ConnectionMatcher:
    """One direction of one connection, compared with the peers and ports of rules."""

    def __init__(self, world: World, connection: Connection, direction: str, peer: Party) -> None:
        """``peer`` is the end of the connection that is not the subject of the policies."""
        self.world = world
        self.connection = connection
        self.direction = direction
        self.peer = peer

    def peers_match(self, policy: NetworkPolicy, peers: tuple[PolicyPeer, ...]) -> bool:
        """Whether the peer of the connection is one of ``peers``."""
        return not peers or any(self.peer_matches(policy, peer) for peer in peers)

    def peer_matches(self, policy: NetworkPolicy, peer: PolicyPeer) -> bool:
        """Whether ``peer`` matches the peer of the connection."""
        if peer.ip_block is not None:
            return any(in_block(address, peer.ip_block) for address in self.peer.addresses)
        if self.peer.pod is None or (peer.pod_selector is None and peer.namespace_selector is None):
            return False
        meta = self.peer.pod.metadata
        if peer.namespace_selector is None:
            if meta.namespace != policy.metadata.namespace:
                return False
        elif not peer.namespace_selector.matches(self.world.labels_of(meta.namespace)):
            return False
        return peer.pod_selector is None or peer.pod_selector.matches(meta.labels)

    def ports_match(self, ports: tuple[PolicyPort, ...]) -> bool:
        """Whether one of ``ports`` matches the destination's port."""
        return not ports or any(self.port_matches(port) for port in ports)

    def port_matches(self, port: PolicyPort) -> bool:
        """Whether ``port`` matches the destination's port."""
        connection = self.connection
        if (port.protocol or "TCP") != connection.protocol:
            return False
        if port.port is None:
            return True
        if isinstance(port.port, str):
            return self.named(port.port)
        return port.port <= connection.port <= (port.end_port or port.port)

    def named(self, name: str) -> bool:
        """Whether the destination is a pod that declares the connection's port under this name."""
        pod = self.connection.destination.pod
        if pod is None:
            return False
        target = (name, self.connection.protocol, self.connection.port)
        return any((port.name, port.protocol, port.container_port) == target for port in pod.declared_ports)

    def in_namespaces(self, pod: Pod, selector: LabelSelector) -> bool:
        """Whether a pod is in one of the namespaces."""
        return selector.matches(self.world.labels_of(pod.metadata.namespace))

    def in_pods(self, pod: Pod, pods: NamespacedPods) -> bool:
        """Whether the selectors match a pod."""
        return self.in_namespaces(pod, pods.namespace_selector) and pods.pod_selector.matches(pod.metadata.labels)

    def cluster_peer_matches(self, peer: ClusterPeer) -> bool:
        """Whether ``peer`` matches the peer of the connection; networks and nodes match only for egress."""
        pod = self.peer.pod
        if peer.namespaces is not None:
            return pod is not None and self.in_namespaces(pod, peer.namespaces)
        if peer.pods is not None:
            return pod is not None and self.in_pods(pod, peer.pods)
        if self.direction == "Ingress":
            return False
        if peer.networks:
            blocks = [IPBlock(cidr=cidr) for cidr in peer.networks]
            return any(in_block(address, block) for address in self.peer.addresses for block in blocks)
        return pod is None and self.on_node(peer.nodes or LabelSelector())

    def on_node(self, selector: LabelSelector) -> bool:
        """Whether the peer of the connection is a node whose labels match."""
        nodes = (node for node in self.world.nodes if node.metadata.name == self.peer.node)
        return any(selector.matches(node.metadata.labels) for node in nodes)

    def protocol_matches(self, protocol: ClusterProtocol) -> bool:
        """Whether the destination's port matches a protocol entry of a rule."""
        if protocol.destination_named_port:
            return self.named(protocol.destination_named_port)
        ports = {"TCP": protocol.tcp, "UDP": protocol.udp, "SCTP": protocol.sctp}.get(self.connection.protocol)
        return ports is not None and port_in(self.connection.port, ports)


def port_in(port: int, ports: ProtocolPorts) -> bool:
    """Whether ``ports`` has a port number."""
    destination = ports.destination_port
    if destination is None:
        return True
    if destination.number is not None:
        return port == destination.number
    return destination.range is not None and destination.range.start <= port <= destination.range.end


def in_block(address: str, block: IPBlock) -> bool:
    """Whether an address is in a block and in none of its exceptions; False for an address of the other family."""
    return _inside(address, block.cidr) and not any(_inside(address, excepted) for excepted in block.excepted)


def _inside(address: str, cidr: str) -> bool:
    """Whether an address is in a range; host bits of the range are ignored, an invalid range contains no address."""
    try:
        value, network = ip_address(address), ip_network(cidr.strip(), strict=False)
    except ValueError:
        return False
    return value.version == network.version and value in network
