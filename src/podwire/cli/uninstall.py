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
@click.option("--objects", is_flag=True, help="Instead of a node: the objects of `podwire install` in the cluster.")
@click.option("--crds", is_flag=True, help="With --objects: also the definitions of kinds, with all of their objects.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--with-pods", is_flag=True, help="Also remove the network of pods that still run on this node.")
@kubeconfig_option
def uninstall(
    config_file: str | None, objects: bool, crds: bool, dry_run: bool, with_pods: bool, kubeconfig: str | None
) -> None:
    """Remove podwire from this node, or its objects from the cluster.

    On a node, the command removes podwire's files, rules, devices, routes, processes and state. Stop the agent and
    drain the node first. Objects of other programs stay. Sysctls get back the values from before podwire, unless
    somebody changed them since. The command works after a crash and without the API server, and you can repeat it.

    With --objects, the command removes the objects that `podwire install` applied and that podwire's programs wrote.
    It does not change the kernels of nodes. Objects of a Helm release stay: `helm uninstall` removes them.

    \b
    podwire uninstall --objects --dry-run
    podwire uninstall --config /etc/podwire/agent.yaml --dry-run
    """
    if bool(config_file) == objects:
        raise click.UsageError("expected exactly one of --config and --objects")
    if objects and with_pods:
        raise click.UsageError("--with-pods is about a node, and goes with --config")
    if crds and not objects:
        raise click.UsageError("--crds goes with --objects")
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
