"""Loads of a data plane and what is announced after them."""

import asyncio

from podwire.dataplane.announcement import LoadAnnouncer


def test_loads_during_an_announcement_are_followed_by_one_more() -> None:
    async def scenario() -> None:
        calls: list[bool] = []
        go_on = asyncio.Event()

        async def announce(first: bool) -> None:
            calls.append(first)
            await go_on.wait()

        announcer = LoadAnnouncer(announce)
        running = asyncio.ensure_future(announcer.run())
        await asyncio.sleep(0.01)
        assert calls == []
        for _ in range(3):
            await asyncio.to_thread(announcer.loaded)
            await asyncio.sleep(0.01)
        assert calls == [True]
        go_on.set()
        await asyncio.sleep(0.01)
        assert calls == [True, False]
        running.cancel()

    asyncio.run(scenario())
