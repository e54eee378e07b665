"""The commands ``podwire upgrade``: a table of verbs, loaded when they are called."""

from collections.abc import Mapping

import click

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "plan": ("podwire.cli.upgrade_plan:plan", "Show what an upgrade would do; changes nothing."),
    "preflight": ("podwire.cli.upgrade_plan:preflight", "Check whether an upgrade can begin; changes nothing."),
    "rehearse": ("podwire.cli.upgrade_rehearse:rehearse", "Try an upgrade in a local copy of the cluster first."),
    "backup": ("podwire.cli.upgrade_backup:backup", "Write the network of the cluster into a folder."),
    "restore": ("podwire.cli.upgrade_backup:restore", "Restore the network of the cluster from a backup."),
    "apply": ("podwire.cli.upgrade_apply:apply", "Upgrade wave by wave of nodes, with checks after each wave."),
    "rollback": ("podwire.cli.upgrade_apply:rollback", "Take back all steps of the last upgrade."),
    "status": ("podwire.cli.upgrade_apply:status", "Show which steps of the upgrade are done."),
    "verify": ("podwire.cli.upgrade_verify:verify", "Test connections of every kind from every node."),
    "node": ("podwire.cli.upgrade_node:node", "Run one step on this node (used by the other commands)."),
    "report": ("podwire.cli.upgrade_report:report", "Show how many messages were lost, on which path, and when."),
    "local": ("podwire.cli.upgrade_local:local", "Upgrade podwire itself in a local cluster."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def upgrade() -> None:
    """Upgrade the network of a running cluster: CNI plugin, kube-proxy and CoreDNS, of podwire or of other projects."""
