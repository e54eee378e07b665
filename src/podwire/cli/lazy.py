"""A group of commands that are imported when they are called."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group made from a table alone: the overview of its commands needs no import."""

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, tuple[str, str]],
        sections: Mapping[str, tuple[str, ...]] | None = None,
        **kwargs: Any,
    ) -> None:
        """``table``: by the name of a command its ``module:attribute`` and its line in the overview.

        ``sections``: headings of the overview with the names of their commands; without it, one section has them all.
        """
        super().__init__(*args, **kwargs)
        self._table = table
        self._sections = sections or {"Commands": tuple(table)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """The commands that begin like this, from the table alone, and the options of the group."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=line) for name, (_, line) in self._table.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview from the table alone."""
        if not self._table:
            return
        widest = max(map(len, self._table))
        for heading, names in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), self._table[name][1]) for name in names])
