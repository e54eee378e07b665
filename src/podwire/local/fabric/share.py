"""The share of the fabric in the desired state of one namespace of a local cluster, or of the host."""

from podwire.errors import ConfigError
from podwire.local.fabric import build
from podwire.local.fabric.plan import ROUTER, SWITCH, owner, plan
from podwire.local.lab.conditions import LabConditions, mtus
from podwire.local.lab.rules import table
from podwire.local.topology import Topology
from podwire.state.network import NetworkState
from podwire.state.share import Share

PART = "fabric"
HOST = "host"


def read_share(topology: Topology, name: str, conditions: LabConditions) -> Share:
    """The fabric's share of a node, of ``switch``, ``router`` or ``host``, with the conditions of its links.

    Raises: ConfigError for another name; the message lists the names that exist.
    """
    nodes = sorted(build.node_names(topology), key=lambda name: int(name.rpartition("-")[2]))
    count = int(nodes[-1].rpartition("-")[2]) if nodes else 0
    fabric = plan(topology, count, mtus(conditions))
    states: dict[str, NetworkState] = {name: fabric.nodes[name] for name in nodes}
    states[SWITCH] = fabric.switch
    if fabric.router is not None:
        states[ROUTER] = fabric.router
    states[HOST] = fabric.host
    if name not in states:
        known = ", ".join(states)
        raise ConfigError("NODE", "", f"{name!r} is not in cluster {topology.name!r}; expected one of {known}")
    mark = owner(topology, on_host=name == HOST)
    tables = (table(topology, count, conditions),) if name == SWITCH else ()
    desired = (mark.stamp(states[name]), *tables)
    return Share(part=PART, protocol=mark.route_protocol, alias=mark.alias_prefix, desired=desired)
