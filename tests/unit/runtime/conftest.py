"""What some tests of this folder undo is done again."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _set_aside() -> Iterator[None]:
    """What tests/unit/conftest.py set aside of the heap, a fork server takes back, and the next would search it."""
    yield
    gc.freeze()
