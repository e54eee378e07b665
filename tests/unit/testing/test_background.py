"""A loop in a thread."""

import asyncio
import threading

import pytest

from podwire.testing.background import BackgroundLoop


def test_coroutines_run_in_the_thread_and_raise_here() -> None:
    background = BackgroundLoop()

    async def where() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("no")

    try:
        assert background.run(where()) == "podwire"
        with pytest.raises(ValueError, match="no"):
            background.run(fail())
    finally:
        background.close()
    background.close()
    assert "podwire" not in [thread.name for thread in threading.enumerate()]


def test_asking_works_from_a_test_with_its_own_loop() -> None:
    background = BackgroundLoop()

    async def body() -> int:
        return background.run(asyncio.sleep(0, 7))

    try:
        assert asyncio.run(body()) == 7
    finally:
        background.close()
