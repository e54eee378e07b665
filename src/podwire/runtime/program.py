"""A child process as a value: the program, its environment and its files. Pure; ``runtime.children`` runs it."""

from collections.abc import Mapping
from typing import Literal

import msgspec


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is to run."""

    name: str
    """Unique among the children of one parent; the name of the record file."""
    argv: tuple[str, ...]
    """The path of the program and its arguments; for another ``start`` than :func:`spawn_program` what that reads."""
    environment: Mapping[str, str] = {}
    """The whole environment of the program."""
    files: Mapping[str, bytes] = {}
    """What the program reads, by absolute path; owned by the child: deleted when the child is no longer wanted."""
    on_file_change: Literal["restart", "reload", "ignore"] = "restart"
    """What a running child gets when only its files change: a new start, SIGHUP, or nothing (the parent tells it)."""
    netns: str = ""
    """Path of the network namespace that the child runs in; empty for that of its parent."""
    log: str = ""
    """File that standard output and error are appended to; empty for those of the parent."""
