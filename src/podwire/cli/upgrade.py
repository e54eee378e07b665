"""The commands ``podwire upgrade``: a table of verbs, loaded when they are called."""

from collections.abc import Mapping

import click

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "plan": ("podwire.cli.upgrade_plan:plan", "Show what an upgrade would do; changes nothing."),
    "preflight": ("podwire.cli.upgrade_plan:preflight", "Check whether an upgrade can begin; changes nothing."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def upgrade() -> None:
    """Upgrade the network of a cluster while traffic flows: CNI, kube-proxy and CoreDNS, podwire's or others'."""
