"""The commands ``podwire upgrade``: a table of verbs, loaded when they are called."""

from collections.abc import Mapping

import click

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "plan": ("podwire.cli.upgrade_plan:plan", "Show what an upgrade would do; changes nothing."),
    "preflight": ("podwire.cli.upgrade_plan:preflight", "Check whether an upgrade can begin; changes nothing."),
    "backup": ("podwire.cli.upgrade_backup:backup", "Write the network of the cluster into a folder."),
    "restore": ("podwire.cli.upgrade_backup:restore", "Take a backup back."),
    "apply": ("podwire.cli.upgrade_apply:apply", "Do the steps of a plan, with gates after each wave of nodes."),
    "rollback": ("podwire.cli.upgrade_apply:rollback", "Take the steps of the last upgrade back."),
    "status": ("podwire.cli.upgrade_apply:status", "Show how far the upgrade is."),
    "verify": ("podwire.cli.upgrade_verify:verify", "Try connections of every kind from every node."),
    "node": ("podwire.cli.upgrade_node:node", "Run one step on this node (used by the other commands)."),
    "report": ("podwire.cli.upgrade_report:report", "Show how many messages were lost, on which path, and when."),
    "local": ("podwire.cli.upgrade_local:local", "Take a local cluster to another build of podwire, and back."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def upgrade() -> None:
    """Upgrade the network of a cluster while traffic flows: CNI, kube-proxy and CoreDNS, podwire's or others'."""
