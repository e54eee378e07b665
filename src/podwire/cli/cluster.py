"""The commands that list, show and remove local clusters, and run commands in their nodes."""

import os
import shlex
from pathlib import Path

import click

from podwire.cli.completion import node_names
from podwire.cli.interrupt import says_when_interrupted
from podwire.cli.options import name_option, running_option
from podwire.cli.target import running_cluster
from podwire.errors import ConfigError
from podwire.local import inventory

output_option = click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True, help="How to print it."
)


@click.command()
@name_option
@click.option("--all", "every", is_flag=True, help="Every local cluster of this machine.")
def down(name: str, every: bool) -> None:
    """Remove a local cluster, leaving the machine as it was before.

    Works in any state: also when processes were killed or `podwire up` was interrupted.
    """
    inventory.check_root()
    for one in inventory.names() if every else (name,):
        inventory.check_name(one)
        left = f"cluster {one!r} may be removed in part: `podwire down --name {one}` removes the rest"
        with says_when_interrupted(left), inventory.locked(one):
            _remove(one)
            inventory.forget_lock(one)


def _remove(name: str) -> None:
    from podwire.local import kubeconfigs, teardown

    topology = inventory.find(name)
    if topology is None:
        click.echo(f"there is no cluster {name!r}")
        return
    for file in kubeconfigs.forget(topology):
        click.echo(f"its context is removed from {file}")
    teardown.destroy(topology)
    click.echo(f"cluster {name!r} is gone")


@click.command("list")
@output_option
def list_clusters(output: str) -> None:
    """List the local clusters of this machine.

    The state is `running`; `degraded` when some process has ended; `stopped` when all have.
    """
    import msgspec

    from podwire.local import overview
    from podwire.model.wording import columns

    found = [overview.brief(topology) for topology in map(inventory.find, inventory.names()) if topology is not None]
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif not found:
        click.echo("no local clusters; `podwire up` makes one", err=True)
    else:
        click.echo(columns([overview.BRIEF_HEAD, *(one.cells() for one in found)]))


@click.command()
@running_option
@output_option
def status(name: str | None, output: str) -> int:
    """Show nodes, data planes and processes of a local cluster.

    Exit status 1 when something is wrong: a process that has ended, an API server that does not answer, a node that is
    not Ready. The output names each problem and what to do.
    """
    import asyncio

    import msgspec

    from podwire.local import overview

    found = asyncio.run(overview.read_status(running_cluster(name)))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo(overview.as_text(found))
    return 1 if found.problems else 0


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

    words = command[1:] if command[0] == "--" else command
    if not words:
        raise ConfigError("COMMAND", "", "expected a command after --")
    inventory.check_root()
    topology = running_cluster(name)
    place = Path(topology.netns(node))
    if "/" in node or not netns.exists(place):
        found = sorted(p.name for p in place.parent.glob("*") if not p.name.startswith("pod-"))
        raise ConfigError("NODE", "", f"{node!r} is not in cluster {topology.name!r}; there is {', '.join(found)}")
    netns.enter(place)
    try:
        os.execvp(words[0], words)
    except OSError as failure:
        raise ConfigError("COMMAND", "", f"{shlex.join(words)}: {failure.strerror}") from failure
