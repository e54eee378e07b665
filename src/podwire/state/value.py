"""What all values of a kernel's state have in common."""

from collections.abc import Iterator
from typing import Protocol

import msgspec


class StateValue(Protocol):
    """A value that a kernel should hold: a whole namespace's objects, a table, a set, a virtual server."""

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        ...


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, order=True):
    """The settings that all state values share: frozen, compared by field, trees without cycles."""


def canonical(value: Value, field: str, form: str | int | tuple[str, ...]) -> None:
    """Replaces a field by its canonical form, from ``__post_init__`` alone."""
    if getattr(value, field) != form:
        msgspec.structs.force_setattr(value, field, form)
