"""The command ``podwire policy``: a table of its commands, which are loaded when they are called."""

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("podwire.cli.policy_list:list_policies", "Show policies: where they are in force, and what they drop."),
    "counters": ("podwire.cli.policy_list:counters", "Show how many packets each rule has decided."),
    "log": ("podwire.cli.policy_log:log", "Show each packet that policies drop, with the reason."),
    "check": ("podwire.cli.policy_check:check", "Find probable mistakes in policies."),
    "diff": ("podwire.cli.policy_diff:diff", "Show which connections another set of policies would allow or deny."),
}
"""By the name of the command: the module with the command, and its line in the overview."""


class _Group(LazyGroup):
    """The commands; without a command name, `list` gets the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts `list` before the options where no command is given; a shell that completes may still want a command."""
        if not (args or ctx.resilient_parsing) or (
            args and args[0].startswith("-") and args[0] not in ctx.help_option_names
        ):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin like this, or the options of `list`."""
        command = self.get_command(ctx, "list") if incomplete.startswith("-") else None
        if command is None:
            return super().shell_complete(ctx, incomplete)
        return command.shell_complete(click.Context(command, parent=ctx, resilient_parsing=True), incomplete)


@click.group(cls=_Group, table=COMMANDS)
def policy() -> None:
    """Show where NetworkPolicies are in force and what they drop, and find mistakes in them.

    Without a command, `list` runs and takes the options: `podwire policy -n shop`.
    """
