"""Waiting until every node serves: its agent knows all nodes, and the kernel holds what follows from that.

A node is Ready as soon as its kubelet has a network to offer. Services, policies and the routes of the other nodes
follow some milliseconds later, and a connection to a new node may fail until then. Each agent says on its page
(:mod:`podwire.cluster.inforce`) what its kernel holds, and announces the data planes in use on its Node. Cost: a
request for each node every :data:`_POLL_S`, and a list of nodes, while the wait lasts.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from podwire.cluster.inforce import Versions, parse
from podwire.cluster.names import NODE_POLICY, NODE_PROXY, NODE_ROUTING
from podwire.errors import ApiError, ApiUnreachable, ProtocolError
from podwire.http.fetch import fetch
from podwire.kube.client import Client
from podwire.kube.resources import NODES
from podwire.local.topology import Topology

_POLL_S = 0.02
_ANNOUNCED = {"routing": NODE_ROUTING, "proxy": NODE_PROXY, "policy": NODE_POLICY}


async def until_serving(topology: Topology, client: Client, names: tuple[str, ...], timeout_s: float) -> list[str]:
    """Returns which of the named nodes do not serve yet, and why: nothing, unless the time is over."""
    deadline = client.clock.monotonic() + timeout_s
    while late := await _late(topology, client, names):
        if client.clock.monotonic() > deadline:
            break
        await client.clock.sleep(_POLL_S)
    return late


async def _late(topology: Topology, client: Client, names: tuple[str, ...]) -> list[str]:
    try:
        nodes = await client.list(NODES)
    except (ApiError, ApiUnreachable) as failure:
        return [f"nodes: {failure}"]
    announced = {node.metadata.name: node.metadata.annotations for node in nodes.items}
    pages = await asyncio.gather(*(asyncio.to_thread(_page, topology, name) for name in names))
    found = []
    for name, page in zip(names, pages, strict=True):
        problem = page if isinstance(page, str) else lacking(page, announced.get(name, {}), names)
        if problem:
            found.append(f"{name}: {problem}")
    return found


def _page(topology: Topology, name: str) -> dict[str, Versions | None] | str:
    try:
        return parse(fetch(Path(topology.node_run(name), "agent.sock"), "/seen"))
    except (OSError, ProtocolError) as failure:
        return f"its agent does not answer ({failure})"


def lacking(parts: Mapping[str, Versions | None], annotations: Mapping[str, str], names: tuple[str, ...]) -> str:
    """What a node still lacks to serve, by its page and its announcements; empty when it serves."""
    for part, versions in parts.items():
        if versions is None:
            return f"{part} is being programmed"
        if "nodes" in versions and (unknown := set(names) - versions["nodes"].keys()):
            return f"{part} does not know {min(unknown)} yet"
        if part in _ANNOUNCED and _ANNOUNCED[part] not in annotations:
            return f"{part} is not announced yet"
    return "" if parts else "no part has begun"
