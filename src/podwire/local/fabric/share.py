"""What the fabric wants of one namespace of a local cluster, or of the host, as a share; and which places there are."""

from podwire.errors import ConfigError
from podwire.local.fabric import build
from podwire.local.fabric.plan import ROUTER, SWITCH, owner, plan
from podwire.local.topology import Topology
from podwire.state.network import NetworkState
from podwire.state.share import Share

PART = "fabric"
HOST = "host"


def read_share(topology: Topology, place: str) -> Share:
    """The fabric's share of a node, of ``switch``, ``router`` or ``host``.

    Raises: ConfigError naming the places that there are.
    """
    nodes = sorted(build.node_names(topology), key=lambda name: int(name.rpartition("-")[2]))
    count = int(nodes[-1].rpartition("-")[2]) if nodes else 0
    fabric = plan(topology, count)
    states: dict[str, NetworkState] = {name: fabric.nodes[name] for name in nodes}
    states[SWITCH] = fabric.switch
    if fabric.router is not None:
        states[ROUTER] = fabric.router
    states[HOST] = fabric.host
    if place not in states:
        others = ", ".join(states)
        raise ConfigError("NODE", "", f"{place!r} is not in cluster {topology.name!r}; there is {others}")
    mark = owner(topology, on_host=place == HOST)
    return Share(part=PART, protocol=mark.route_protocol, alias=mark.alias_prefix, desired=(mark.stamp(states[place]),))
