"""The common interface and settings of state values."""

from collections.abc import Iterator
from typing import Protocol

import msgspec


class StateValue(Protocol):
    """The state of a whole namespace, a table, a set or a virtual server."""

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        ...


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, order=True):
    """Settings of all state values: frozen, compared by field, not tracked by the garbage collector."""


def canonical(value: Value, field: str, form: str | int | tuple[object, ...]) -> None:
    """Replaces a field by its canonical form; to be called only in ``__post_init__``."""
    if getattr(value, field) != form:
        msgspec.structs.force_setattr(value, field, form)
