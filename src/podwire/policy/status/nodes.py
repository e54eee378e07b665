"""Which nodes enforce policies, and at which port the network may ask their agents what policies do (pure).

An agent says both on its Node: ``podwire.io/policy`` is the data plane in force, ``podwire.io/health`` the port of its
health endpoint, where this is not on loopback alone. The API server passes requests on to it
(``nodes/NAME:PORT/proxy``), so whoever may ask for that needs no way to the nodes.
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
    """What an agent says of its health endpoint: the port, or nothing where the network does not reach it."""
    if not port:
        return ""
    try:
        local = ip_address(address).is_loopback
    except ValueError:
        local = address == "localhost"
    return "" if local else str(port)


def enforcing(nodes: Iterable[Node]) -> dict[str, int]:
    """The ports of nodes that enforce policies, by their names; 0: their agents cannot be asked."""
    found = {}
    for node in nodes:
        notes = node.metadata.annotations
        if notes.get(NODE_POLICY):
            port = notes.get(NODE_HEALTH_PORT, "")
            found[node.metadata.name] = int(port) if port.isdecimal() else 0
    return found


def complaints(failures: Mapping[str, str]) -> list[str]:
    """One sentence for each reason why nodes could not be asked, with the first of these nodes."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in failures.items():
        by_reason.setdefault(reason, []).append(node)
    return [f"not asked: {_some(nodes)}: {reason}" for reason, nodes in by_reason.items()]


def _some(nodes: list[str]) -> str:
    ordered = sorted(nodes, key=lambda node: (len(node), node))
    more = f" and {len(nodes) - _FEW} more" if len(nodes) > _FEW else ""
    return ", ".join(ordered[:_FEW]) + more
