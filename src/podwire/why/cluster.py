"""The sources for answers about one cluster (pure)."""

from collections.abc import Callable, Iterable

import msgspec

from podwire.cluster.world import World
from podwire.why.nodes import Nodes
from podwire.why.objects import Objects
from podwire.why.policies.lines import Lines, no_line


def _same(_world: World) -> Iterable[str]:
    return ()


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The API objects, the nodes and the manifests of one cluster."""

    objects: Objects
    nodes: Nodes
    lines: Lines = no_line
    """Finds the lines of objects' fields in manifests."""
    differences: Callable[[World], Iterable[str]] = _same
    """Compares policies of the cluster with the manifests; yields a sentence for each difference."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader about the source of the objects."""
