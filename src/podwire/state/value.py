"""The common interface and settings of state values."""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
from msgspec.structs import force_setattr


class StateValue(Protocol):
    """The state of a whole namespace, a table, a set or a virtual server."""

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        ...


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, order=True):
    """Settings of all state values: frozen, compared by field, not tracked by the garbage collector."""


def with_field(value: Any, field: str, content: object) -> Any:
    """A copy of a canonical value with one field set, to canonical content: nothing is checked again."""
    copied = value.__copy__()
    force_setattr(copied, field, content)
    return copied


def canonical(value: Value, field: str, form: str | int | tuple[object, ...]) -> None:
    """Replaces a field by its canonical form; to be called only in ``__post_init__``."""
    if getattr(value, field) != form:
        force_setattr(value, field, form)
