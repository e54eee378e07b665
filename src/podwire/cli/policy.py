"""The command ``podwire policy``: a table of its commands, which are loaded when they are called."""

from collections.abc import Mapping

import click

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "check": ("podwire.cli.policy_check:check", "Find what is probably not meant in policies."),
    "diff": ("podwire.cli.policy_diff:diff", "Show whose connections another set of policies would change."),
}
"""Name of the command: where it is, and its line in the overview."""


@click.group(cls=LazyGroup, table=COMMANDS)
def policy() -> None:
    """NetworkPolicies: whether they are in force, what they drop, and what is wrong with them."""
