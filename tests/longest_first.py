"""The order in which files of tests begin: a long one that begins last would run alone for most of its time."""

from collections.abc import Sequence
from pathlib import Path

import pytest


def sort(items: list[pytest.Item], folder: Path, longest: Sequence[str]) -> None:
    """Moves the tests of these files of a folder to the front, in the order of the names; the rest stay as they are.

    Raises: AssertionError when a name is that of no file.
    """
    positions = {folder / name: place for place, name in enumerate(longest)}
    missing = [path.name for path in positions if not path.exists()]
    assert not missing, f"{folder} has no {', '.join(missing)}"
    items.sort(key=lambda item: positions.get(item.path, len(positions)))
