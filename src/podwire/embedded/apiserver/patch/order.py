"""The order of a list that two sides contribute to."""

from collections.abc import Callable, Sequence
from typing import Any

Item = Any


def ordered(
    merged: Sequence[Item], patched: Sequence[Item], live: Sequence[Item], identity: Callable[[Item], Any]
) -> list[Item]:
    """Merged items in the wanted order, with the items that only the server has put between them.

    Both relative orders are kept; a server's item goes before the first wanted item that follows it in the
    live list.
    """
    wanted_index = {identity(item): index for index, item in reversed(list(enumerate(patched)))}
    before = {identity(item): index for index, item in reversed(list(enumerate(live)))}
    right = sorted(
        (item for item in merged if identity(item) in wanted_index), key=lambda it: wanted_index[identity(it)]
    )
    unplaced = [item for item in merged if identity(item) not in wanted_index]
    unplaced.sort(key=lambda item: before.get(identity(item), len(before)))
    out: list[Item] = []
    while unplaced and right:
        mine, theirs = before.get(identity(unplaced[0])), before.get(identity(right[0]))
        server_first = mine is not None and theirs is not None and mine < theirs
        out.append((unplaced if server_first else right).pop(0))
    return out + unplaced + right
