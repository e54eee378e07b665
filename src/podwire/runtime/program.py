"""A child process as a value: the program, its environment and its files. Pure; ``runtime.children`` runs it."""

from collections.abc import Mapping
from typing import Literal

import msgspec


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A program that should run."""

    name: str
    """Unique among the children of one parent; the name of the record file."""
    argv: tuple[str, ...]
    """The path of the program and its arguments; a ``start`` other than :func:`spawn_program` defines its own
    meaning."""
    environment: Mapping[str, str] = {}
    """The whole environment of the program."""
    files: Mapping[str, bytes] = {}
    """The files that the program reads, by absolute path; they are deleted when the child is no longer desired."""
    on_file_change: Literal["restart", "reload", "ignore"] = "restart"
    """When only files change: restart the child, have it read them, or do nothing (the parent notifies it)."""
    check: tuple[str, ...] = ()
    """The command that checks changed files before they replace the former ones: an argument that is the path of a
    file of ``files`` becomes the path of its new content. Empty: no check."""
    reload: tuple[str, ...] = ()
    """With ``on_file_change`` "reload", the command that makes the running program read its files. Empty: SIGHUP."""
    restart_by: Literal["term", "kill"] = "term"
    """The signal that ends the child for a restart: "kill" where SIGTERM makes the program undo its work."""
    netns: str = ""
    """Path of the child's network namespace; empty for that of its parent."""
    version: str = ""
    """The version of podwire that runs in it, for its record; another one alone is no reason for a restart."""
    niceness: int = 0
    """The scheduling priority, -20..19 as in nice(1); below 0 for programs that packets of pods pass."""
    log: str = ""
    """File to which standard output and error are appended; empty for those of the parent."""
