"""The lines of files in which policies are written, as verdicts name them."""

from collections.abc import Callable

Lines = Callable[[str, str, str], str]
"""From kind, key and field of an object to ``file:line``; empty: not known."""


def no_line(_kind: str, _key: str, _field: str) -> str:
    """The line of a field when there are no files: always empty."""
    return ""
