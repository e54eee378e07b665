"""The command ``podwire policy``: a table of its commands, which are loaded when they are called."""

from collections.abc import Mapping

import click

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("podwire.cli.policy_list:list_policies", "Show policies: where they are in force, and what they drop."),
    "counters": ("podwire.cli.policy_list:counters", "Show how many packets each rule has decided."),
    "log": ("podwire.cli.policy_log:log", "Show what policies drop, packet by packet, with the reason."),
    "check": ("podwire.cli.policy_check:check", "Find what is probably not meant in policies."),
    "diff": ("podwire.cli.policy_diff:diff", "Show whose connections another set of policies would change."),
}
"""Name of the command: where it is, and its line in the overview."""


@click.group(cls=LazyGroup, table=COMMANDS, invoke_without_command=True)
@click.pass_context
def policy(context: click.Context) -> int | None:
    """NetworkPolicies: whether they are in force, what they drop, and what is wrong with them.

    Without a command, `list`.
    """
    if context.invoked_subcommand is not None:
        return None
    from podwire.cli.policy_list import list_policies

    return int(list_policies.main((), prog_name="podwire policy list", standalone_mode=False))
