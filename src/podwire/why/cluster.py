"""What questions about one cluster are answered from (pure)."""

from collections.abc import Callable, Iterable

import msgspec

from podwire.cluster.world import World
from podwire.why.nodes import Nodes
from podwire.why.objects import Objects
from podwire.why.policies.verdict import Lines, no_line


def _same(_world: World) -> Iterable[str]:
    return ()


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The API objects and the nodes of one cluster, and where its objects were written."""

    objects: Objects
    nodes: Nodes
    lines: Lines = no_line
    """Where the fields of objects stand in files."""
    differences: Callable[[World], Iterable[str]] = _same
    """Policies of the cluster that those files describe otherwise, a sentence each."""
    notes: tuple[str, ...] = ()
    """What a reader should know of where the objects come from."""
