"""Waits until what was changed through the API is in force on every node.

Each agent tells on its page ``/seen`` which version of which object its kernel holds. What is wanted is a snapshot of
the caller's own informers: when every agent has all of those objects, at those versions or later ones, and none that
are gone, then everything that the caller has seen in the API is in the kernels.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from podwire.agent.seen import BUSY, Versions
from podwire.errors import ClusterError, ProtocolError
from podwire.http.fetch import fetch
from podwire.local.layout import Layout
from podwire.runtime.clock import Clock

_POLL_S = 0.005


def behind(lines: Iterable[str], part: str, wanted: Versions) -> str:
    """What a part of an agent does not hold yet, by the lines of its page; empty when it holds all that is wanted."""
    seen: dict[str, dict[str, str]] = {}
    known = False
    for line in lines:
        words = line.split()
        if not words or words[0] != part:
            continue
        known = True
        if words[1:] == [BUSY]:
            return "it is being programmed"
        if len(words) == 4:
            seen.setdefault(words[1], {})[words[2]] = words[3]
    if not known:
        return f"its agent has no part {part}"
    for plural, objects in wanted.items():
        have = seen.get(plural, {})
        for key, version in objects.items():
            if key not in have or int(have[key]) < int(version):
                return f"{plural} {key} is not known at version {version}"
        if gone := have.keys() - objects.keys():
            return f"{plural} {min(gone)} is not gone"
    return ""


async def wait(
    layout: Layout, nodes: Iterable[str], wanted: Callable[[], Versions], clock: Clock, timeout_s: float
) -> None:
    """Returns when the policies of all nodes are in force; ``wanted`` is asked again at each look.

    Raises: ClusterError naming the node and what it lacks.
    """
    deadline = clock.monotonic() + timeout_s
    for node in nodes:
        path = Path(layout.node_run(node), "agent.sock")
        while problem := await asyncio.to_thread(_ask, path, wanted()):
            if clock.monotonic() > deadline:
                raise ClusterError(f"{node}: policies are not in force: {problem}")
            await clock.sleep(_POLL_S)


def _ask(path: Path, wanted: Mapping[str, Mapping[str, str]]) -> str:
    try:
        return behind(fetch(path, "/seen"), "policy", wanted)
    except (OSError, ProtocolError) as failure:
        return f"its agent does not answer ({failure})"
