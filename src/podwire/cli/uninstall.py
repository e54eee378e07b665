"""The command ``podwire uninstall``."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podwire.cli.options import kubeconfig_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kube.config import ApiConfig


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="Configuration of the node's agent.")
@click.option("--nodes", "on_nodes", is_flag=True, help="Instead of this node: the nodes of the cluster.")
@click.option("--node", "named", metavar="NAME", multiple=True, help="With --nodes: only this node; can be repeated.")
@click.option("--objects", is_flag=True, help="Instead of a node: the objects of `podwire install` in the cluster.")
@click.option("--crds", is_flag=True, help="With --objects: also the definitions of kinds, with all of their objects.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--with-pods", is_flag=True, help="Also remove the network of pods that still run on this node.")
@kubeconfig_option
def uninstall(
    config_file: str | None,
    on_nodes: bool,
    named: tuple[str, ...],
    objects: bool,
    kubeconfig: str | None,
    **options: bool,
) -> int:
    """Remove podwire from this node or the nodes of a cluster, or its objects from the cluster.

    On a node, the command removes podwire's files, rules, devices, routes, processes and state. Stop the agent and
    drain the node first. Objects of other programs stay. Sysctls get back the values from before podwire, unless
    somebody changed them since. The command works after a crash and without the API server, and you can repeat it.

    With --nodes, the agents of the cluster end, and then the command does the same in a pod on each node. It refuses
    nodes whose pods still have podwire's network. Do this before you remove the objects.

    With --objects, the command removes the objects that `podwire install` applied and that podwire's programs wrote.
    It does not change the kernels of nodes. Objects of a Helm release stay: `helm uninstall` removes them.

    \b
    podwire uninstall --config /etc/podwire/agent.yaml --dry-run
    podwire uninstall --nodes
    podwire uninstall --objects --dry-run
    """
    crds, dry_run, with_pods = (options[name] for name in ("crds", "dry_run", "with_pods"))
    if sum((bool(config_file), on_nodes, objects)) != 1:
        raise click.UsageError("expected exactly one of --config, --nodes and --objects")
    if objects and with_pods:
        raise click.UsageError("--with-pods is about a node, and goes with --config or --nodes")
    if crds and not objects:
        raise click.UsageError("--crds goes with --objects")
    if on_nodes and dry_run:
        raise click.UsageError("--dry-run goes with --config or --objects")
    if named and not on_nodes:
        raise click.UsageError("--node goes with --nodes")
    if on_nodes:
        return _clean_nodes(kubeconfig, named, with_pods=with_pods)
    subjects: list[str] = []

    def say(line: str) -> None:
        subjects.append(line)
        click.echo(line)

    if config_file:
        from podwire.agent.config import load
        from podwire.install import uninstall as removal

        removal.run(load(Path(config_file)), say, dry=dry_run, with_pods=with_pods)
    else:
        from podwire.kube.config import load as load_access

        asyncio.run(_remove_objects(load_access(kubeconfig, os.environ), say, dry=dry_run, crds=crds))
    if not subjects:
        click.echo("there is nothing to remove")
    return 0


def _clean_nodes(kubeconfig: str | None, named: tuple[str, ...], *, with_pods: bool) -> int:
    from podwire.cli.nodecommands import run_on_nodes
    from podwire.install.cluster import NAMESPACE

    removal = run_on_nodes(kubeconfig, NAMESPACE, named, lambda commands: commands.uninstall(with_pods=with_pods))
    return asyncio.run(removal)


async def _remove_objects(config: "ApiConfig", say: "Callable[[str], None]", *, dry: bool, crds: bool) -> None:
    from podwire.install.clusterremoval import ClusterRemoval
    from podwire.install.objects import MANAGER
    from podwire.kube.client import Client
    from podwire.runtime.clock import SystemClock

    client = Client(config, SystemClock(), manager=MANAGER)
    try:
        await ClusterRemoval(client, say, dry=dry).run(definitions=crds)
    finally:
        await client.close()
