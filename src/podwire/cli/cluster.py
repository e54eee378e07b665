"""The commands that list, show and remove local clusters, and run commands in their nodes."""

import os
import shlex
from pathlib import Path

import click

from podwire.cli.completion import node_names
from podwire.cli.interrupt import message_when_interrupted
from podwire.cli.options import name_option, output_option, running_option
from podwire.cli.output import print_json
from podwire.cli.target import running_cluster
from podwire.errors import ConfigError
from podwire.local import inventory


@click.command()
@name_option
@click.option("--all", "every", is_flag=True, help="Remove every local cluster of this machine.")
def down(name: str, every: bool) -> None:
    """Remove a local cluster with all its processes, namespaces and rules; the machine is as before.

    The command works in any state of the cluster, also when processes were killed or `podwire up` was interrupted.
    """
    inventory.check_root()
    for cluster in inventory.names() if every else (name,):
        inventory.check_name(cluster)
        message = f"cluster {cluster!r} may be removed in part: `podwire down --name {cluster}` removes the rest"
        with message_when_interrupted(message), inventory.locked(cluster):
            _remove(cluster)
            inventory.forget_lock(cluster)


def _remove(name: str) -> None:
    from podwire.local import kubeconfigs, teardown

    topology = inventory.find(name)
    if topology is None:
        click.echo(f"there is no cluster {name!r}")
        return
    for file in kubeconfigs.forget(topology):
        click.echo(f"removed the context of cluster {name!r} from {file}")
    teardown.destroy(topology)
    click.echo(f"removed cluster {name!r}")


@click.command("list")
@output_option
def list_clusters(output: str) -> None:
    """List the local clusters of this machine.

    The state of a cluster is `running`, `degraded` when a process has ended, or `stopped` when all have ended.
    """

    from podwire.local import briefs
    from podwire.model.wording import columns

    clusters = [briefs.brief(topology) for topology in map(inventory.find, inventory.names()) if topology is not None]
    if output == "json":
        print_json(clusters)
    elif not clusters:
        click.echo("no local clusters; `podwire up` makes one", err=True)
    else:
        click.echo(columns([briefs.BRIEF_HEAD, *(cluster.cells() for cluster in clusters)]))


@click.command()
@running_option
@output_option
def status(name: str | None, output: str) -> int:
    """Show nodes, data planes and processes of a local cluster.

    The exit status is 1 when a process has ended, the API server does not answer, or a node is not Ready. The output
    names each problem and what to do.
    """
    import asyncio

    from podwire.local import overview

    cluster_status = asyncio.run(overview.read_status(running_cluster(name)))
    if output == "json":
        print_json(cluster_status)
    else:
        click.echo(overview.as_text(cluster_status))
    return 1 if cluster_status.problems else 0


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@running_option
@click.argument("node", shell_complete=node_names)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str | None, node: str, command: tuple[str, ...]) -> None:
    """Run a command in a node's network namespace.

    NODE is a node's name, or `switch` or `router` for the fabric between the nodes. A `--` before the command is
    allowed, as with kubectl exec.

    \b
    podwire exec node-1 ip route
    podwire exec node-2 nft list ruleset
    podwire exec node-1 -- tcpdump -ni eth0
    """
    from podwire.kernel import netns

    arguments = command[1:] if command[0] == "--" else command
    if not arguments:
        raise ConfigError("COMMAND", "", "expected a command after --")
    if command[0].startswith("-") and command[0] != "--":
        raise ConfigError("COMMAND", "", f"{command[0]!r} is not a command; write options before NODE")
    inventory.check_root()
    topology = running_cluster(name)
    netns_path = Path(topology.netns(node))
    if "/" in node or not netns.exists(netns_path):
        known = sorted(p.name for p in netns_path.parent.glob("*") if not p.name.startswith("pod-"))
        raise ConfigError(
            "NODE", "", f"{node!r} is not in cluster {topology.name!r}; expected one of {', '.join(known)}"
        )
    netns.enter(netns_path)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as failure:
        raise ConfigError("COMMAND", "", f"{shlex.join(arguments)}: {failure.strerror}") from failure
