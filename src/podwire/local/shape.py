"""Number of nodes and conditions of links in the last complete configuration of a local cluster.

They are fields of :class:`~podwire.local.config.ClusterConfig`, whose other fields need the modules of every part of
podwire. Commands that list and show clusters read these alone.
"""

from pathlib import Path

import msgspec

from podwire.local.lab.conditions import LinkConditions
from podwire.local.topology import Topology

CONFIG_FILE = "cluster.yaml"
"""The file in the run folder of a cluster with its last complete configuration."""


class ClusterShape(msgspec.Struct, frozen=True):
    """Two fields of the configuration."""

    nodes: int
    links: dict[str, LinkConditions] = {}


def recall_shape(topology: Topology) -> ClusterShape | None:
    """The fields as they were stored; None when the cluster was never complete."""
    try:
        return msgspec.yaml.decode((Path(topology.run) / CONFIG_FILE).read_bytes(), type=ClusterShape)
    except (OSError, msgspec.MsgspecError):
        return None
