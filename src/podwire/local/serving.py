"""Waits until every node serves: its agent knows all nodes, and its kernel holds the resulting state.

A node is Ready as soon as its kubelet can attach pods. Services, policies and the routes to the other nodes follow some
milliseconds later, and a connection to a new node may fail until then. Each agent has a page
(:mod:`podwire.cluster.inforce`) that reports the state of its kernel, and announces the data planes in use on its Node.
Cost during the wait: a watch of the nodes, and requests to the agents that do not serve yet, each when its Node has
changed and in growing intervals (a request takes the agent 2 ms, and agents start slowly on a busy machine).
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from podwire.cluster.inforce import Versions, parse
from podwire.cluster.names import NODE_POLICY, NODE_PROXY, NODE_ROUTING
from podwire.errors import ProtocolError
from podwire.http.fetch import fetch
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import NODES
from podwire.local.topology import Topology
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.runtime.tasks import TaskSet

_FIRST_POLL_S = 0.05
_LAST_POLL_S = 0.4
_ANNOUNCED = {"routing": NODE_ROUTING, "proxy": NODE_PROXY, "policy": NODE_POLICY}


async def until_serving(topology: Topology, client: Client, names: tuple[str, ...], timeout_s: float) -> list[str]:
    """Waits until the named nodes serve, or until the time is over; returns which do not serve, and why."""
    log = Log("up")
    tasks = TaskSet(lambda name, failure: log.error("watch failed", failure=failure, watch=name))
    nodes = Informer(client, NODES)
    tasks.start("nodes", nodes.run())
    late = dict.fromkeys(names, "its Node is not known yet")
    try:
        async with asyncio.timeout(timeout_s):
            await nodes.synced.wait()
            await _until_none_is_late(topology, nodes, late)
    except TimeoutError:
        pass
    finally:
        await tasks.close()
    return [f"{name}: {problem}" for name, problem in late.items()]


async def _until_none_is_late(topology: Topology, nodes: Informer[Node], late: dict[str, str]) -> None:
    """Returns when ``late`` is empty; ``late`` names by node what is missing."""
    names = tuple(late)
    changed, woken = set(names), asyncio.Event()

    def observe(name: str, _old: Node | None, _new: Node | None) -> None:
        changed.add(name)
        woken.set()

    nodes.subscribe(observe)
    poll_s = _FIRST_POLL_S
    while late:
        asked = [name for name in late if name in changed] or list(late)
        changed.clear()
        woken.clear()
        pages = await asyncio.gather(*(asyncio.to_thread(_page, topology, name) for name in asked))
        for name, page in zip(asked, pages, strict=True):
            node = nodes.objects.get(name)
            announced = node.metadata.annotations if node is not None else {}
            late[name] = page if isinstance(page, str) else lacking(page, announced, names)
            if not late[name]:
                del late[name]
        if late:
            try:
                async with asyncio.timeout(poll_s):
                    await woken.wait()
            except TimeoutError:
                poll_s = min(poll_s * 1.5, _LAST_POLL_S)


def _page(topology: Topology, name: str) -> dict[str, Versions | None] | str:
    try:
        return parse(fetch(Path(topology.node_run(name), "agent.sock"), "/seen"))
    except (OSError, ProtocolError) as failure:
        return f"its agent does not answer ({failure})"


def lacking(parts: Mapping[str, Versions | None], annotations: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first reason why a node does not serve, by its page and its announcements; empty when it serves."""
    for part, versions in parts.items():
        if versions is None:
            return f"{part} is being programmed"
        if "nodes" in versions and (unknown := set(names) - versions["nodes"].keys()):
            return f"{part} does not know {min(unknown)} yet"
        if part in _ANNOUNCED and _ANNOUNCED[part] not in annotations:
            return f"{part} is not announced yet"
    return "" if parts else "no part has begun"
