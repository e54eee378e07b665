"""Which flows run between the nodes of a cluster, and from outside. Pure.

Up to :data:`MESH_NODES` nodes each node sends to each, itself included. In larger clusters a node sends to itself, to
the next node, and to nodes a quarter, a half and three quarters of the way round: each pair of neighbours and each
distance is covered, and the number of flows grows with the number of nodes, not with its square.

| path | kinds | from |
|---|---|---|
| ``pod`` | tcp, new, udp | each node to pods of other nodes and its own |
| ``service`` | tcp, new, udp | each node to the Service's address |
| ``dns`` | dns, dns-tcp | each node to the address of cluster DNS |
| ``denied`` | denied, denied-udp | each node to a port of those pods that a policy denies |
| ``nodeport``, ``loadbalancer``, ``ingress`` | http | outside |
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Literal

import msgspec

from podwire.flows.count import FlowKind, FlowTarget
from podwire.flows.messages import DENIED_PORT, DNS_PORT, HTTP_PORT, PORT

MESH_NODES = 6
DNS_NAME = "kubernetes.default.svc"
INGRESS_HOST = "podwire-flows.internal"
_NUMBERS: tuple[FlowKind, ...] = ("tcp", "new", "udp")
_QUERIES: tuple[FlowKind, ...] = ("dns", "dns-tcp")
_DENIED: tuple[FlowKind, ...] = ("denied", "denied-udp")


class FlowServer(msgspec.Struct, frozen=True):
    """The server on a node, by the addresses of its pod."""

    node: str
    addresses: tuple[str, ...]


class FlowAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """What flows of a cluster go to; what is empty has no flows.

    ``node_ports`` are (address, port) of each node; ``balancers`` and ``ingresses`` are addresses.
    """

    servers: tuple[FlowServer, ...]
    service: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    domain: str = "cluster.local"
    node_ports: tuple[tuple[str, int], ...] = ()
    balancers: tuple[str, ...] = ()
    ingresses: tuple[str, ...] = ()
    denied: bool = True


def peers(nodes: Sequence[str], node: str) -> list[str]:
    """The nodes to which a node sends, itself first."""
    at, size = nodes.index(node), len(nodes)
    if size <= MESH_NODES:
        return [*nodes[at:], *nodes[:at]]
    offsets = (0, 1, size // 4, size // 2, 3 * size // 4)
    return [nodes[(at + offset) % size] for offset in offsets]


def inside(addresses: FlowAddresses, node: str) -> list[FlowTarget]:
    """The flows that a node sends."""
    servers = {server.node: server for server in addresses.servers}
    targets = []
    for peer in peers(list(servers), node):
        for address in servers[peer].addresses:
            path = f"pod on {peer}"
            targets += [FlowTarget(kind=kind, address=address, port=PORT, path=path) for kind in _NUMBERS]
            if addresses.denied:
                targets += [FlowTarget(kind=kind, address=address, port=DENIED_PORT, path=path) for kind in _DENIED]
    for address in addresses.service:
        targets += [FlowTarget(kind=kind, address=address, port=PORT, path="service") for kind in _NUMBERS]
    for address in addresses.dns:
        targets += [_query(kind, address, addresses.domain) for kind in _QUERIES]
    return targets


def _query(kind: FlowKind, address: str, domain: str) -> FlowTarget:
    record: Literal["A", "AAAA"] = "AAAA" if ip_address(address).version == 6 else "A"
    name = f"{DNS_NAME}.{domain}."
    return FlowTarget(kind=kind, address=address, port=DNS_PORT, path="dns", name=name, record=record)


def outside(addresses: FlowAddresses) -> list[FlowTarget]:
    """The flows that a machine outside of the cluster sends."""
    targets = [
        FlowTarget(kind="http", address=address, port=port, path="nodeport") for address, port in addresses.node_ports
    ]
    targets += [
        FlowTarget(kind="http", address=address, port=HTTP_PORT, path="loadbalancer") for address in addresses.balancers
    ]
    targets += [
        FlowTarget(kind="http", address=address, port=80, path="ingress", name=INGRESS_HOST)
        for address in addresses.ingresses
    ]
    return targets
