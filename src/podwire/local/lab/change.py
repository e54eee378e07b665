"""One change of the conditions of a running cluster's links; the caller holds the cluster's lock."""

from typing import Any

from msgspec.structs import replace

from podwire.errors import ClusterError, PodwireError
from podwire.local.config import recall_config
from podwire.local.lab.apply import rebuild
from podwire.local.lab.conditions import LabConditions, LinkConditions, Pair, check_links, check_pair, port_of
from podwire.local.lab.record import read_changes, read_conditions, write_changes
from podwire.local.topology import Topology

SOURCE = "podwire lab"


class LabChange:
    """Collects changes, then makes all of them or none."""

    def __init__(self, topology: Topology) -> None:
        """Raises: ClusterError when the cluster was not completely created."""
        config = recall_config(topology)
        if config is None:
            raise ClusterError(
                f"cluster {topology.name!r} was not completely created; run `podwire up --name {topology.name}`"
            )
        self._topology = topology
        self._configured = config.links
        self._nodes = config.nodes
        self._before = read_conditions(topology, config.links)
        self._links = dict(read_changes(topology).links)
        self._pairs = self._before.pairs

    @property
    def conditions(self) -> LabConditions:
        """The conditions after the change."""
        return LabConditions(self._links, self._pairs).over(self._configured)

    def set_link(self, station: str, **values: Any) -> None:
        """Sets the given conditions of a station's link; its other conditions stay.

        Raises: ConfigError for an unknown station or a wrong value.
        """
        port_of(self._topology, self._nodes, station, SOURCE)
        known = self._links.get(station) or self._configured.get(station) or LinkConditions()
        link = replace(known, **values)
        check_links({station: link}, SOURCE)
        self._links[station] = link

    def cut_pair(self, node: str, other: str) -> None:
        """Cuts two nodes from each other.

        Raises: ConfigError when they are not two nodes of one segment.
        """
        for station in (node, other):
            port_of(self._topology, self._nodes, station, SOURCE)
        pair: Pair = (min(node, other), max(node, other))
        check_pair(self._topology, pair, SOURCE)
        self._pairs = (*(known for known in self._pairs if known != pair), pair)

    def heal(self, stations: tuple[str, ...]) -> None:
        """Reverts the changes at the links of these stations, or at all links when no station is named.

        Raises: ConfigError for an unknown station.
        """
        for station in stations:
            port_of(self._topology, self._nodes, station, SOURCE)
            self._links.pop(station, None)
        if not stations:
            self._links.clear()
        self._pairs = tuple(pair for pair in self._pairs if stations and not set(pair) & set(stations))

    def commit(self) -> None:
        """Applies the conditions to the fabric and stores the changes; after a failure the earlier conditions stay.

        Raises: KernelError, ClusterError.
        """
        try:
            rebuild(self._topology, self._nodes, self.conditions)
        except PodwireError:
            rebuild(self._topology, self._nodes, self._before)
            raise
        write_changes(self._topology, LabConditions(self._links, self._pairs))
