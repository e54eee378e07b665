"""Names, addresses and paths of one local cluster; pure arithmetic on its name, index and size.

A cluster has an index (0 to 31) that is unique among the clusters of a machine; everything that could collide
is derived from it:

* fabric segment ``s`` (0 to 7): ``10.89.<8*index+s>.0/24`` and ``fd89:<index>:<s>::/64``; the host is ``.1``
  on segment 0, the router ``.254`` on each, nodes count from ``.11`` up, 240 to a segment;
* namespaces: ``<run>/netns/{switch,router,<node>,pod-<sandbox>}``;
* the host's own link: ``pw<index>-host``.

Nodes are spread over segments round-robin.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import PurePosixPath

import msgspec

FABRIC = ("10.89.0.0/16", "fd89::/16")
"""The networks that contain the segments of all clusters."""
HOST_NUMBER = 1
ROUTER_NUMBER = 254
FIRST_NODE_NUMBER = 11
NODES_PER_SEGMENT = 240
HOST_PORT = "host"
"""The switch port of the host."""
CLUSTERS = 32
SEGMENTS = 8


class Segment(msgspec.Struct, frozen=True):
    """One L2 segment of the fabric."""

    number: int
    network: IPv4Network
    network6: IPv6Network

    @property
    def bridge(self) -> str:
        """The bridge's name in the switch namespace."""
        return self.station

    @property
    def station(self) -> str:
        """The name of the router's link to this segment."""
        return f"segment-{self.number}"

    @property
    def router(self) -> IPv4Address:
        """The router's address on this segment."""
        return self.network[ROUTER_NUMBER]

    @property
    def router6(self) -> IPv6Address:
        """The router's address on this segment, second family."""
        return self.network6[ROUTER_NUMBER]


class FabricNode(msgspec.Struct, frozen=True):
    """The place of a node in the fabric: its segment, addresses and names."""

    name: str
    number: int
    segment: Segment
    address: IPv4Address
    address6: IPv6Address

    @property
    def port(self) -> str:
        """The switch port's name of this node."""
        return f"port-{self.number}"


class Topology(msgspec.Struct, frozen=True):
    """The names, addresses and paths that follow from a cluster's name, index and number of segments."""

    name: str
    index: int
    segment_count: int
    run: str
    state: str
    format: int = 1
    """The number of the form of the file that stores it."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order."""
        return tuple(self.segment(number) for number in range(self.segment_count))

    def segment(self, number: int) -> Segment:
        """Segment ``number``."""
        return Segment(
            number=number,
            network=IPv4Network(f"10.89.{SEGMENTS * self.index + number}.0/24"),
            network6=IPv6Network(f"fd89:{self.index:x}:{number:x}::/64"),
        )

    @property
    def host_link(self) -> str:
        """The host's link to the fabric."""
        return f"pw{self.index}-host"

    @property
    def host_address(self) -> IPv4Address:
        """The host's address on the fabric."""
        return self.segment(0).network[HOST_NUMBER]

    @property
    def host_address6(self) -> IPv6Address:
        """The host's address on the fabric, second family."""
        return self.segment(0).network6[HOST_NUMBER]

    def node(self, number: int) -> FabricNode:
        """Node ``number``, counted from 1."""
        segment = self.segment((number - 1) % self.segment_count)
        offset = FIRST_NODE_NUMBER + (number - 1) // self.segment_count
        return FabricNode(
            name=f"node-{number}",
            number=number,
            segment=segment,
            address=segment.network[offset],
            address6=segment.network6[offset],
        )

    def nodes(self, count: int) -> tuple[FabricNode, ...]:
        """The first ``count`` nodes."""
        return tuple(self.node(number) for number in range(1, count + 1))

    @property
    def run_path(self) -> PurePosixPath:
        """Sockets, namespaces, process files; gone after a reboot."""
        return PurePosixPath(self.run)

    @property
    def state_path(self) -> PurePosixPath:
        """Database, certificates, pod directories."""
        return PurePosixPath(self.state)

    def netns(self, name: str) -> PurePosixPath:
        """The mounted namespace ``switch``, ``router`` or that of a node, by its name."""
        return self.run_path / "netns" / name

    def node_run(self, node: str) -> PurePosixPath:
        """Sockets and configuration of one node."""
        return self.run_path / "nodes" / node

    def agent_socket(self, node: str) -> PurePosixPath:
        """The socket on which a node's agent serves its pages."""
        return self.node_run(node) / "agent.sock"

    def bpf_folder(self, node: str = "") -> str:
        """The folder of a node's BPF programs; without a node the beginning of those of all nodes."""
        return f"{self.name}@{node}"

    def node_state(self, node: str) -> PurePosixPath:
        """Address database and pod directories of one node."""
        return self.state_path / "nodes" / node
