"""Messages between agents: sent while the API is away, taken back afterwards, and otherwise left out."""

import asyncio

from tests.fakes.clock import FakeClock
from tests.fakes.ports import free_port

from podwire.loadbalancer.heartbeats import INTERVAL_S, Heartbeats
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeStatus

ADDRESSES = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="127.0.0.1"),))
NODES = {name: Node(metadata=ObjectMeta(name=name), status=ADDRESSES) for name in ("here", "there")}


def test_messages_are_sent_only_about_lost_contact() -> None:
    async def body() -> None:
        clock, has_contact = FakeClock(), True
        beats = Heartbeats("here", lambda: NODES, clock, free_port())
        task = asyncio.ensure_future(beats.run(lambda: has_contact, lambda: frozenset(NODES), lambda: INTERVAL_S))
        await clock.advance(10.0)
        assert not beats.messages, "nothing is said while there is contact"
        has_contact = False
        await clock.advance(2 * INTERVAL_S)
        assert beats.messages["here"][1] is False
        has_contact = True
        await clock.advance(2 * INTERVAL_S)
        assert beats.messages["here"][1] is True
        await clock.advance(10.0)
        last, _ = beats.messages["here"]
        assert last < clock.monotonic() - 5.0, "contact is said for a while only"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_contact_is_looked_at_as_often_as_is_asked_for() -> None:
    async def body() -> None:
        clock, looks, interval_s = FakeClock(), [0], 1.0

        def contact() -> bool:
            looks[0] += 1
            return True

        beats = Heartbeats("here", lambda: NODES, clock, free_port())
        task = asyncio.ensure_future(beats.run(contact, lambda: frozenset(NODES), lambda: interval_s))
        await clock.advance(10.0)
        assert 9 <= looks[0] <= 11
        interval_s, before = INTERVAL_S, looks[0]
        await clock.advance(10.0)
        assert looks[0] - before >= 9 / INTERVAL_S
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
