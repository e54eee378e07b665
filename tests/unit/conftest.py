"""What holds for every unit test."""

import asyncio
import gc

from hypothesis import settings
from tests.unit.patient_loop import Policy

# How long an example takes says what else the machine does.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
asyncio.set_event_loop_policy(Policy())


def pytest_collection_finish() -> None:
    """The tests themselves, and all that they import, are not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
