"""Which nodes are alive by their Leases, with a clock moved by hand."""

import asyncio

from tests.fakes.clock import FakeClock

from podwire.routing.egress.view import EXPIRY_S, Liveness
from podwire.runtime.clock import rfc3339_micro


def test_a_node_that_renews_no_longer_expires() -> None:
    async def body() -> None:
        clock = FakeClock()
        liveness = Liveness(clock)
        for second in range(int(EXPIRY_S) + 2):
            liveness.observe("a", rfc3339_micro(clock.now()))
            if second == 0:
                liveness.observe("b", rfc3339_micro(clock.now()))
            await clock.advance(1)
        assert liveness.alive(connected=True) == {"a"}
        await clock.advance(EXPIRY_S)
        assert liveness.alive(connected=True) == {"a"}, "no Lease is renewed: the API is away"
        liveness.observe("b", rfc3339_micro(clock.now()))
        assert liveness.alive(connected=False) == {"a"}
        assert liveness.alive(connected=True) == {"b"}

    asyncio.run(body())


def test_a_new_candidate_is_alive_until_it_fails_to_renew() -> None:
    async def body() -> None:
        clock = FakeClock()
        liveness = Liveness(clock)
        for name in ("a", "b"):
            liveness.expect(name)
        assert liveness.alive(connected=True) == {"a", "b"}
        await clock.advance(EXPIRY_S - 1)
        liveness.expect("b")
        liveness.observe("a", rfc3339_micro(clock.now()))
        await clock.advance(1)
        assert liveness.alive(connected=True) == {"a"}

    asyncio.run(body())


def test_old_and_unreadable_leases_are_expired_when_first_read() -> None:
    clock = FakeClock()
    liveness = Liveness(clock)
    liveness.observe("old", "2001-01-01T00:00:00.000000Z")
    liveness.observe("odd", "soon")
    liveness.observe("new", rfc3339_micro(clock.now()))
    assert liveness.alive(connected=True) == {"new"}
    liveness.observe("new", None)
    liveness.observe("old", rfc3339_micro(clock.now()))
    assert liveness.alive(connected=True) == {"old"}
