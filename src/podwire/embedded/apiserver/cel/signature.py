"""One form of a function that expressions may call."""

from collections.abc import Callable
from typing import Any

import msgspec

Value = dict[str, Any]
"""A value of a type that only Kubernetes has, with its kind under ``kind``."""


class Signature(msgspec.Struct, frozen=True):
    """One form of a function."""

    name: str
    parameters: tuple[str, ...]
    """Types; the first is that of the receiver of a method."""
    result: str
    call: Callable[..., Any] | None
    """None for a function that each evaluation brings itself."""
    method: bool = False
    internal: bool = False
    """Whether only the library calls it, for one of its macros."""
