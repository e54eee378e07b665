"""The command ``podwire kubeconfig``."""

import os
from pathlib import Path

import click

from podwire.cli.options import name_option
from podwire.errors import ClusterError, ConfigError
from podwire.local import inventory


@click.command()
@name_option
@click.option("--text", is_flag=True, help="Print the content of the file instead of its path.")
@click.option("--merge", is_flag=True, help="Add the cluster to your kubeconfig and make it the current context.")
def kubeconfig(name: str, text: bool, merge: bool) -> None:
    """Print the path (or the text) of a cluster's kubeconfig.

    --merge adds the cluster to the file in $KUBECONFIG, or to ~/.kube/config, and makes its context the current one, so
    that kubectl works in every shell. `podwire down` removes the cluster from that file again.

    \b
    export KUBECONFIG=$(podwire kubeconfig)
    podwire kubeconfig --merge
    """
    from podwire.local import credentials, kubeconfigs

    if text and merge:
        raise click.UsageError("expected one of --text and --merge")
    topology = inventory.existing(name)
    path = credentials.kubeconfig_path(topology, "admin")
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError as failure:
        raise ClusterError(f"cluster {name!r} has no kubeconfig yet; run `podwire up`") from failure
    except PermissionError as failure:
        raise ConfigError("podwire", "", f"only root can read {path}; use sudo") from failure
    if merge:
        file = _users_file()
        if file.resolve().is_relative_to(Path(topology.state).resolve()):
            raise ConfigError("KUBECONFIG", str(file), "is the cluster's own file; unset KUBECONFIG to use --merge")
        context = kubeconfigs.merge(topology, file)
        click.echo(f"{file}: the current context is {context}")
    else:
        click.echo(content if text else str(path), nl=not text)


def _users_file() -> Path:
    """The file that kubectl writes to: the first of ``$KUBECONFIG``, else that of the home folder."""
    named = [file for file in os.environ.get("KUBECONFIG", "").split(":") if file]
    return Path(named[0]) if named else Path.home() / ".kube/config"
