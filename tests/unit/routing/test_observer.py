"""The observer of sessions: what it announces on the Node, and when."""

import asyncio
from pathlib import Path

from tests.fakes.clock import FakeClock
from tests.unit.routing.router_lab import Lab, node

from podwire.cluster.names import NODE_SESSIONS
from podwire.model.node import Node
from podwire.routing.observer import SessionObserver


def test_summary_of_an_earlier_agent_is_taken_back_without_sessions() -> None:
    announced: list[dict[str, str]] = []
    nodes: list[Node | None] = [None]

    async def announce(annotations: dict[str, str]) -> None:
        announced.append(annotations)
        nodes[0] = node(1, annotations)

    async def body() -> None:
        lab = Lab()
        lab.router.own.run_dir = str(Path("/nonexistent"))
        observer = SessionObserver(lab.router, FakeClock(), lambda: nodes[0], announce)
        await observer.observe()
        nodes[0] = node(1)
        await observer.observe()
        assert not announced, "nothing is announced that the Node says already"
        nodes[0] = node(1, {NODE_SESSIONS: "bgp: 1 of 1 sessions established"})
        await observer.observe()
        await observer.observe()
        assert announced == [{NODE_SESSIONS: ""}] and list(observer.page()) == []

    asyncio.run(body())
