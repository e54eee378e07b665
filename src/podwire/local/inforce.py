"""Waits until changes that were made through the API are in force on every node.

The agents' pages (:mod:`podwire.cluster.inforce`) are compared with a snapshot of the caller's informers. When every
agent has all objects of the snapshot, in the same or later versions, and no deleted object, then all changes that the
caller has seen in the API are in the kernels.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from podwire.cluster.inforce import Versions, lag
from podwire.errors import ClusterError, ProtocolError
from podwire.http.fetch import fetch
from podwire.local.topology import Topology
from podwire.runtime.clock import Clock

_POLL_S = 0.005


async def wait(
    topology: Topology, nodes: Iterable[str], expected: Callable[[], Versions], clock: Clock, timeout_s: float
) -> None:
    """Returns when the policies of all nodes are in force; ``expected`` is called before each comparison.

    Raises: ClusterError naming the node and the object that is not in force there.
    """
    deadline = clock.monotonic() + timeout_s
    for node in nodes:
        path = Path(topology.node_run(node), "agent.sock")
        while problem := await asyncio.to_thread(_problem, path, expected()):
            if clock.monotonic() > deadline:
                raise ClusterError(f"{node}: policies are not in force: {problem}")
            await clock.sleep(_POLL_S)


def _problem(path: Path, expected: Versions) -> str:
    try:
        return lag(fetch(path, "/seen"), "policy", expected)
    except (OSError, ProtocolError) as failure:
        return f"its agent does not answer ({failure})"
