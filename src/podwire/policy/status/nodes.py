"""Which nodes enforce policies, and on which port their agents serve counters and logs (pure).

An agent writes both on its Node: ``podwire.io/policy`` is the data plane in use, ``podwire.io/health`` the port of its
health endpoint if that listens on more than the loopback address. The API server forwards requests there
(``nodes/NAME:PORT/proxy``), so clients need no route to the nodes.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from podwire.cluster.names import NODE_HEALTH_PORT, NODE_POLICY
from podwire.model.node import Node

COUNTERS_PAGE, LOG_PAGE = "/policy/counters", "/policy/log"

NO_PORT = "its agent serves no health port on the network (set health.address and health.port in its configuration)"
NO_LOG = "its agent does not serve its policy log on the network (set health.policyLog in its configuration)"

_FEW = 5


def port_of(address: str, port: int) -> str:
    """The annotation value for a health endpoint: the port, or empty when it listens on loopback alone."""
    if not port:
        return ""
    try:
        local = ip_address(address).is_loopback
    except ValueError:
        local = address == "localhost"
    return "" if local else str(port)


def enforcing(nodes: Iterable[Node]) -> dict[str, int]:
    """The health ports of nodes that enforce policies, by node name; 0: the agent serves none on the network."""
    ports = {}
    for node in nodes:
        annotations = node.metadata.annotations
        if annotations.get(NODE_POLICY):
            port = annotations.get(NODE_HEALTH_PORT, "")
            ports[node.metadata.name] = int(port) if port.isdecimal() else 0
    return ports


def complaints(failures: Mapping[str, str]) -> list[str]:
    """One sentence for each reason why nodes did not answer; it names the first five of these nodes."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in failures.items():
        by_reason.setdefault(reason, []).append(node)
    return [f"no answer from {_listed(nodes)}: {reason}" for reason, nodes in by_reason.items()]


def _listed(nodes: list[str]) -> str:
    ordered = sorted(nodes, key=lambda node: (len(node), node))
    more = f" and {len(nodes) - _FEW} more" if len(nodes) > _FEW else ""
    return ", ".join(ordered[:_FEW]) + more
