"""The commands ``podwire upgrade backup`` and ``restore``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from podwire.cli.options import kubeconfig_option

if TYPE_CHECKING:
    from podwire.upgrade.backup.save import BackupOptions

namespace_option = click.option(
    "-n", "--namespace", default="kube-system", show_default=True, metavar="NAME", help="Namespace of the pods."
)
image_option = click.option(
    "--node-image",
    default="",
    metavar="IMAGE",
    help="Image with podwire for the pods.  [default: that of podwire's agents]",
)
_conf_option = click.option(
    "--cni-conf-dir", default="/etc/cni/net.d", show_default=True, metavar="DIR", help="Configurations on the nodes."
)
_bin_option = click.option(
    "--cni-bin-dir", default="/opt/cni/bin", show_default=True, metavar="DIR", help="CNI programs on the nodes."
)


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of commands that run pods on the nodes of a cluster."""
    for option in (_bin_option, _conf_option, image_option, namespace_option, kubeconfig_option):
        command = option(command)
    return command


_nodes_option = click.option("--no-nodes", is_flag=True, help="Only objects of the API.")


@click.command()
@node_options
@_nodes_option
@click.option("--to", "folder", metavar="DIR", required=True, help="A new folder.")
@click.option("--workload", "workloads", metavar="NAMESPACE/NAME", multiple=True, help="A further network workload.")
def backup(kubeconfig: str | None, folder: str, workloads: tuple[str, ...], no_nodes: bool, **options: str) -> None:
    """Write the network of the cluster into a folder: objects, configurations of the nodes, kernel state.

    The command changes nothing in the cluster. The folder is complete only when the command has ended with exit
    status 0. It has no Secrets.
    """
    import asyncio

    from podwire.cli.api import client_of
    from podwire.model.wording import count
    from podwire.upgrade.backup.save import save

    client = client_of(kubeconfig)
    wanted_options = _options(workloads, no_nodes, options)

    async def run() -> None:
        try:
            index = await save(client, Path(folder), wanted_options, click.echo)
        finally:
            await client.close()
        size = sum(entry.size for entry in index.entries)
        click.echo(f"backup of {count(len(index.entries), 'content')}, {count(size, 'byte')}, in {folder}")

    asyncio.run(run())


@click.command()
@node_options
@_nodes_option
@click.option("--from", "folder", metavar="DIR", required=True, help="The folder of the backup.")
@click.option("--force", is_flag=True, help="Also restore fields that other managers have changed.")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
def restore(kubeconfig: str | None, folder: str, force: bool, dry_run: bool, no_nodes: bool, **options: str) -> int:
    """Restore objects and configurations of the nodes from a backup; the state of the kernels is only compared.

    The exit status is 1 when an object was refused, or another manager has changed its fields.
    """
    import asyncio

    from podwire.cli.api import client_of
    from podwire.kube.alone import run_alone
    from podwire.upgrade.apply.record import NAME
    from podwire.upgrade.backup.folder import BackupFolder
    from podwire.upgrade.backup.restore import Restore

    client = client_of(kubeconfig)
    wanted_options = _options((), no_nodes, options)

    async def run() -> int:
        try:
            restoring = Restore(client, BackupFolder(Path(folder)), click.echo, force=force, dry=dry_run)
            return await run_alone(client, wanted_options.namespace, NAME, lambda: restoring.run(wanted_options))
        finally:
            await client.close()

    return asyncio.run(run())


def _options(workloads: tuple[str, ...], no_nodes: bool, options: dict[str, str]) -> "BackupOptions":
    from podwire.upgrade.backup.save import BackupOptions
    from podwire.upgrade.nodepods import NodeFolders

    return BackupOptions(
        namespace=options["namespace"],
        image=options["node_image"],
        workloads=workloads,
        folders=NodeFolders(conf_dir=options["cni_conf_dir"], bin_dir=options["cni_bin_dir"]),
        nodes=not no_nodes,
    )
